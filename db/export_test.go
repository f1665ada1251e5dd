package db

import "context"

// MigrateTo is Migrate as a binary did it whose last migration was to.
func MigrateTo(ctx context.Context, ownerURL string, loginKey []byte, to uint) (URLs, error) {
	return migrateTo(ctx, ownerURL, URLs{}, loginKey, to)
}

// LockWait is how long a migration holds up those who use a table that it waits for.
const LockWait = lockWait
