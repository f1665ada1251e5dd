package secret

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"

	"managoat/queries"
)

// KeySize is the size of the master key and of every data key in bytes: AES-256.
const KeySize = 32

// Versions that new rows are sealed with. A row names the version of the key that sealed it, so that keys can be
// changed while old rows still open.
const (
	masterVersion int32 = 1
	dataVersion   int32 = 1
)

// maxCachedKeys bounds the data keys kept in memory; past it the cache starts anew.
const maxCachedKeys = 10_000

// ErrSealed is wrapped by every error of a value that does not open: another master key, another account's or row's
// value, a damaged one. It never holds the value.
var ErrSealed = errors.New("the sealed value does not open with this instance's keys")

// ParseMasterKey reads 32 bytes written in hex or base64 (standard or URL alphabet, with or without padding).
func ParseMasterKey(s string) ([]byte, error) {
	s = strings.TrimSpace(s)
	if key, err := hex.DecodeString(s); err == nil && len(key) == KeySize {
		return key, nil
	}
	plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(s, "="))
	if key, err := base64.RawStdEncoding.DecodeString(plain); err == nil && len(key) == KeySize {
		return key, nil
	}
	return nil, fmt.Errorf("the master key must be %d bytes in hex or base64: openssl rand -hex %d makes one", KeySize, KeySize)
}

// MasterKeyFile reads the key file, and makes it when it is not there: readable by its owner only, on disk before it is
// used. A file that others may read is refused.
func MasterKeyFile(path string) ([]byte, error) {
	key, err := readKeyFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	fresh := make([]byte, KeySize)
	rand.Read(fresh)
	tmp, err := os.CreateTemp(filepath.Dir(path), ".master-key-") // 0600
	if err != nil {
		return nil, fmt.Errorf("make the master key file: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = fmt.Fprintln(tmp, hex.EncodeToString(fresh))
	if e := tmp.Sync(); err == nil {
		err = e
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("make the master key file: %w", err)
	}
	// A link fails when another process was first, whose key is then the one.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the master key file: %w", err)
	}
	return readKeyFile(path)
}

func readKeyFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the master key file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("the master key file %s may be read by others (mode %04o): chmod 600 it", path, mode)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the master key file: %w", err)
	}
	key, err := ParseMasterKey(string(b))
	if err != nil {
		return nil, fmt.Errorf("master key file %s: %w", path, err)
	}
	return key, nil
}

// Keyring seals and opens secrets: the master key seals one data key per account, the data key seals the account's
// values. Associated data bind a data key to its account and a value to its account and row, so that a sealed value
// that was copied elsewhere does not open.
type Keyring struct {
	master cipher.AEAD

	mu   sync.Mutex
	data map[uuid.UUID]cipher.AEAD
}

// Open makes the keyring of a master key of 32 bytes.
func Open(masterKey []byte) (*Keyring, error) {
	master, err := aead(masterKey)
	if err != nil {
		return nil, err
	}
	return &Keyring{master: master, data: map[uuid.UUID]cipher.AEAD{}}, nil
}

// NewDataKey makes the data key of a new account, sealed by the master key.
func (k *Keyring) NewDataKey(tenantID uuid.UUID) (sealed []byte, version int32) {
	key := make([]byte, KeySize)
	rand.Read(key)
	return seal(k.master, key, dataKeyOf(tenantID)), masterVersion
}

// Check tells whether a sealed data key opens: whether this is the master key the accounts were made with.
func (k *Keyring) Check(tenantID uuid.UUID, sealed []byte, version int32) error {
	_, err := k.open(tenantID, sealed, version)
	return err
}

// Seal seals a value for one row of the account whose queries q are.
func (k *Keyring) Seal(ctx context.Context, q *queries.Queries, tenantID, rowID uuid.UUID, v Value) (sealed []byte, version int32, err error) {
	key, err := k.dataKey(ctx, q, tenantID)
	if err != nil {
		return nil, 0, err
	}
	return seal(key, []byte(v.Reveal()), valueOf(tenantID, rowID)), dataVersion, nil
}

// Unseal opens the value of one row of the account whose queries q are.
func (k *Keyring) Unseal(ctx context.Context, q *queries.Queries, tenantID, rowID uuid.UUID, sealed []byte, version int32) (Value, error) {
	if version != dataVersion {
		return Value{}, fmt.Errorf("%w: key version %d is not known", ErrSealed, version)
	}
	key, err := k.dataKey(ctx, q, tenantID)
	if err != nil {
		return Value{}, err
	}
	plain, err := open(key, sealed, valueOf(tenantID, rowID))
	if err != nil {
		return Value{}, fmt.Errorf("row %s: %w", rowID, err)
	}
	return New(string(plain)), nil
}

func (k *Keyring) dataKey(ctx context.Context, q *queries.Queries, tenantID uuid.UUID) (cipher.AEAD, error) {
	k.mu.Lock()
	key, ok := k.data[tenantID]
	k.mu.Unlock()
	if ok {
		return key, nil
	}
	t, err := q.Tenant(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the account's data key: %w", err)
	}
	if t.TenantID != tenantID {
		return nil, fmt.Errorf("the queries are of account %s, not of %s", t.TenantID, tenantID)
	}
	if key, err = k.open(tenantID, t.DataKey, t.KeyVersion); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.data) >= maxCachedKeys {
		clear(k.data)
	}
	k.data[tenantID] = key
	return key, nil
}

func (k *Keyring) open(tenantID uuid.UUID, sealed []byte, version int32) (cipher.AEAD, error) {
	if version != masterVersion {
		return nil, fmt.Errorf("%w: master key version %d is not known", ErrSealed, version)
	}
	key, err := open(k.master, sealed, dataKeyOf(tenantID))
	if err != nil {
		return nil, fmt.Errorf("data key of account %s: %w", tenantID, err)
	}
	return aead(key)
}

// Associated data: what a sealed thing is and whose.
func dataKeyOf(tenantID uuid.UUID) []byte { return append([]byte("data key "), tenantID[:]...) }
func valueOf(tenantID, rowID uuid.UUID) []byte {
	return append(append([]byte("value "), tenantID[:]...), rowID[:]...)
}

func aead(key []byte) (cipher.AEAD, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("a key has %d bytes, not %d", KeySize, len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func seal(key cipher.AEAD, plain, associated []byte) []byte {
	return key.Seal(nil, nil, plain, associated)
}

func open(key cipher.AEAD, sealed, associated []byte) ([]byte, error) {
	plain, err := key.Open(nil, nil, sealed, associated)
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}
