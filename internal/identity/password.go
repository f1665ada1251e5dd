package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/crypto/argon2"

	"managoat/internal/secret"
)

// Cost is what argon2id spends on one password. A stored hash says its own.
type Cost struct {
	Memory uint32 // KiB
	Passes uint32
}

// DefaultCost is OWASP's second choice.
var DefaultCost = Cost{Memory: 19 * 1024, Passes: 2}

const (
	argonThreads = 1
	saltSize     = 16
	hashSize     = 32

	// maxArgonMemory bounds what a stored hash may ask for, in KiB.
	maxArgonMemory = 256 * 1024
)

// Lengths of a password. The upper one bounds the work of a sign-in.
const (
	MinPassword = 8    // characters
	MaxPassword = 1024 // bytes
)

// hashing bounds how many passwords are hashed at once, and with it the memory they take.
var hashing = make(chan struct{}, max(2, runtime.NumCPU()))

func limited[T any](ctx context.Context, fn func() T) (out T, err error) {
	select {
	case hashing <- struct{}{}:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	defer func() { <-hashing }()
	return fn(), nil
}

// hash makes the string that is stored of a password.
func (c Cost) hash(ctx context.Context, password secret.Value) (string, error) {
	salt := make([]byte, saltSize)
	rand.Read(salt)
	hash, err := limited(ctx, func() []byte {
		return argon2.IDKey([]byte(password.Reveal()), salt, c.Passes, c.Memory, argonThreads, hashSize)
	})
	if err != nil {
		return "", err
	}
	return c.stored(salt, hash), nil
}

// stored is $argon2id$v=19$m=…,t=…,p=…$salt$hash.
func (c Cost) stored(salt, hash []byte) string {
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, c.Memory, c.Passes, argonThreads,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(hash))
}

// decoy is nobody's hash, and takes as long as anybody's: an unknown e-mail is not told from a known one by the time.
func (c Cost) decoy() string { return c.stored(make([]byte, saltSize), make([]byte, hashSize)) }

// verifyPassword tells whether the password is the one that was hashed.
func verifyPassword(ctx context.Context, stored string, password secret.Value) (bool, error) {
	h, err := parseHash(stored)
	if err != nil {
		return false, err
	}
	got, err := limited(ctx, func() []byte {
		return argon2.IDKey([]byte(password.Reveal()), h.salt, h.passes, h.memory, h.threads, uint32(len(h.hash)))
	})
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, h.hash) == 1, nil
}

type passwordHash struct {
	memory, passes uint32
	threads        uint8
	salt, hash     []byte
}

func parseHash(stored string) (passwordHash, error) {
	bad := errors.New("a stored password hash cannot be read")
	parts := strings.Split(stored, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" {
		return passwordHash{}, bad
	}
	var version int
	var h passwordHash
	if _, err := fmt.Sscanf(parts[2], "v=%d", &version); err != nil || version != argon2.Version {
		return passwordHash{}, bad
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.threads); err != nil ||
		h.memory > maxArgonMemory || h.passes == 0 || h.threads == 0 {
		return passwordHash{}, bad
	}
	var err error
	if h.salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(h.salt) == 0 {
		return passwordHash{}, bad
	}
	if h.hash, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(h.hash) == 0 {
		return passwordHash{}, bad
	}
	return h, nil
}
