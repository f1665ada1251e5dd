package db

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Logins made by Migrate, and the role that owns the definer functions and can never log in.
const (
	appRole      = "managoat_app"
	platformRole = "managoat_platform"
	definerRole  = "managoat_definer"
)

// migrateLock serialises roles and migrations of servers that start together.
const migrateLock = 7273_0001

// oldestServer is the oldest PostgreSQL this schema is written for.
const oldestServer = 150000

// Migrate brings the database of ownerURL up to date and returns the URLs of the two logins the server runs with.
// The owner must be able to create roles, or both logins must be given; it is used for nothing else.
//
// The password of a login that is not given is derived from loginKey (the instance's master key), so that every server
// of the instance knows it and none has to be told.
func Migrate(ctx context.Context, ownerURL string, given URLs, loginKey []byte) (URLs, error) {
	return migrateTo(ctx, ownerURL, given, loginKey, 0)
}

// migrateTo is Migrate up to a version, as a binary of that time would have done it.
func migrateTo(ctx context.Context, ownerURL string, given URLs, loginKey []byte, to uint) (URLs, error) {
	conn, err := pgx.Connect(ctx, ownerURL)
	if err != nil {
		return URLs{}, fmt.Errorf("connect as the owner: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", migrateLock); err != nil {
		return URLs{}, fmt.Errorf("wait for other servers that migrate: %w", err)
	}
	defer conn.Exec(context.WithoutCancel(ctx), "select pg_advisory_unlock($1)", migrateLock)

	var version int
	if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version); err != nil {
		return URLs{}, err
	}
	if version < oldestServer {
		return URLs{}, fmt.Errorf("PostgreSQL 15 or newer is needed, this one says %d", version)
	}
	urls := given
	if urls.App, err = login(ctx, conn, ownerURL, appRole, given.App, loginKey); err != nil {
		return URLs{}, err
	}
	if urls.Platform, err = login(ctx, conn, ownerURL, platformRole, given.Platform, loginKey); err != nil {
		return URLs{}, err
	}
	if err := ensureRole(ctx, conn, definerRole, "nologin"); err != nil {
		return URLs{}, err
	}
	// To hand functions to the definer role the owner must be a member of it and the role must be allowed to create
	// in the schema: both only while migrations run, so that nobody who runs statements is a member.
	for _, sql := range []string{"grant " + definerRole + " to current_user", "grant create on schema public to " + definerRole} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return URLs{}, fmt.Errorf("prepare migrations: %w", err)
		}
	}
	err = up(ctx, ownerURL, to)
	for _, sql := range []string{"revoke create on schema public from " + definerRole, "revoke " + definerRole + " from current_user"} {
		if _, e := conn.Exec(context.WithoutCancel(ctx), sql); err == nil && e != nil {
			err = fmt.Errorf("end migrations: %w", e)
		}
	}
	return urls, err
}

// login makes sure of one login role and returns the URL to use it with.
func login(ctx context.Context, conn *pgx.Conn, ownerURL, role, given string, loginKey []byte) (string, error) {
	if given != "" {
		var exists bool
		if err := conn.QueryRow(ctx, "select exists (select 1 from pg_roles where rolname = $1)", role).Scan(&exists); err != nil {
			return "", err
		}
		if !exists {
			return "", fmt.Errorf("the role %s must exist when its URL is given: create role %s login nosuperuser nobypassrls", role, role)
		}
		return given, nil
	}
	password := loginPassword(loginKey, role)
	if err := ensureRole(ctx, conn, role, "login nosuperuser nocreatedb nocreaterole nobypassrls password '"+password+"'"); err != nil {
		return "", err
	}
	return withLogin(ownerURL, role, password)
}

func loginPassword(loginKey []byte, role string) string {
	mac := hmac.New(sha256.New, loginKey)
	mac.Write([]byte("database login " + role))
	return hex.EncodeToString(mac.Sum(nil))
}

// LoginURLs are the URLs of the logins that Migrate makes on the owner's database, with passwords from loginKey.
func LoginURLs(ownerURL string, loginKey []byte) (urls URLs, err error) {
	if urls.App, err = withLogin(ownerURL, appRole, loginPassword(loginKey, appRole)); err != nil {
		return URLs{}, err
	}
	urls.Platform, err = withLogin(ownerURL, platformRole, loginPassword(loginKey, platformRole))
	return urls, err
}

// Roles are the cluster's, and the lock of migrations is of one database: servers of another database there may be at the same
// role. PostgreSQL refuses the later one then.
const (
	rolePause = 50 * time.Millisecond
	roleTries = 100
)

func ensureRole(ctx context.Context, conn *pgx.Conn, role, options string) error {
	for try := 1; ; try++ {
		var exists bool
		if err := conn.QueryRow(ctx, "select exists (select 1 from pg_roles where rolname = $1)", role).Scan(&exists); err != nil {
			return err
		}
		verb := "create role "
		if exists {
			verb = "alter role "
		}
		_, err := conn.Exec(ctx, verb+role+" "+options)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused) && try < roleTries && ctx.Err() == nil &&
			(strings.Contains(refused.Message, "concurrently updated") || refused.Code == pgerrcode.DuplicateObject || refused.Code == pgerrcode.UniqueViolation):
			time.Sleep(rolePause)
		default:
			return fmt.Errorf("%s%s: %w (give MANAGOAT_APP_DATABASE_URL and MANAGOAT_PLATFORM_DATABASE_URL when the owner may not create roles)", verb, role, err)
		}
	}
}

// withLogin is the owner's URL with another user.
func withLogin(ownerURL, user, password string) (string, error) {
	u, err := url.Parse(ownerURL)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the database URL must be of the form postgres://user:password@host:port/name")
	}
	u.User = url.UserPassword(user, password)
	q := u.Query()
	q.Del("user")
	q.Del("password")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// Patience of migrations with tables that servers of the version before are using. While a statement waits for its lock
// everybody else who wants the table waits behind it, so it does not wait for long, and the migration begins again.
const (
	lockWait  = time.Second
	lockPause = 2 * time.Second  // for those who waited
	lockTries = 10 * time.Minute // after which the migration is given up
)

// NewerError says that the database was migrated by a newer binary than this one.
type NewerError struct{ Version, Known uint }

func (e *NewerError) Error() string {
	return fmt.Sprintf("a newer Managoat has brought the database to version %d, and this one knows up to %d: start the newer one here too, or restore a backup of before. Servers of this version that run already may go on", e.Version, e.Known)
}

// up applies the migrations up to one, or all (0).
func up(ctx context.Context, ownerURL string, to uint) error {
	source, err := iofs.New(migrations, "migrations")
	if err != nil {
		return err
	}
	last, err := lastOf(source)
	if err != nil {
		return err
	}
	if to == 0 {
		to = last
	}
	cfg, err := pgx.ParseConfig(ownerURL)
	if err != nil {
		return errors.New("the owner's connection string cannot be read")
	}
	sqlDB := stdlib.OpenDB(*cfg)
	defer sqlDB.Close()
	driver, err := migratepgx.WithInstance(sqlDB, &migratepgx.Config{})
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", &whole{Driver: driver})
	if err != nil {
		return err
	}
	defer m.Close()
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	defer stop()
	for began := time.Now(); ; {
		version, _, err := m.Version()
		if err == nil && version > last {
			return &NewerError{version, last}
		}
		if err == nil || errors.Is(err, migrate.ErrNilVersion) {
			err = m.Migrate(to)
		}
		var dirty migrate.ErrDirty
		switch {
		case err == nil, errors.Is(err, migrate.ErrNoChange):
			return nil
		case errors.As(err, &dirty):
			return fmt.Errorf("migration %d failed half way before: restore the database or mend it by hand, then set its version", dirty.Version)
		case !busy(err) || time.Since(began) > lockTries:
			return fmt.Errorf("migrate: %w", err)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lastOf(s source.Driver) (uint, error) {
	version, err := s.First()
	for err == nil {
		var next uint
		if next, err = s.Next(version); err == nil {
			version = next
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return version, err
}

// busy tells that a migration did not get a lock in time.
func busy(err error) bool {
	var failed database.Error
	if errors.As(err, &failed) {
		err = failed.OrigErr
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == pgerrcode.LockNotAvailable
}

// whole makes each migration one transaction with its version, so that a server that dies in the middle of one leaves
// nothing of it, and nothing to mend.
type whole struct {
	database.Driver
	version int
}

// SetVersion is called before a migration, with dirty, and after it.
func (w *whole) SetVersion(version int, dirty bool) error {
	if dirty {
		w.version = version
		return nil
	}
	return w.Driver.SetVersion(version, false)
}

// Run runs a migration.
func (w *whole) Run(migration io.Reader) error {
	sql, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	// Statements that are sent as one are one transaction.
	return w.Driver.Run(strings.NewReader(fmt.Sprintf("set local lock_timeout = %d;\n%s\n;delete from schema_migrations;\ninsert into schema_migrations (version, dirty) values (%d, false);",
		lockWait.Milliseconds(), sql, w.version)))
}

// MigrationsDigest changes when the migrations of this binary do.
func MigrationsDigest() (string, error) {
	entries, err := migrations.ReadDir("migrations")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range entries {
		b, err := migrations.ReadFile("migrations/" + e.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", e.Name(), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
