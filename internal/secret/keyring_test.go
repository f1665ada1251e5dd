package secret_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/identity/identitytest"
	"managoat/internal/secret"
)

func TestASealedValueOpensForItsAccountAndRowOnly(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	ctx := context.Background()
	row, other := uuid.New(), uuid.New()
	q := d.Tenant(a.TenantID)
	sealed, version, err := d.Keys.Seal(ctx, q, a.TenantID, row, secret.New(plain))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte(plain)) {
		t.Fatal("the sealed value holds the plain one")
	}
	again, _, err := d.Keys.Seal(ctx, q, a.TenantID, row, secret.New(plain))
	if err != nil || bytes.Equal(sealed, again) {
		t.Fatalf("sealing twice gives the same bytes: a nonce was used twice (%v)", err)
	}
	if got, err := d.Keys.Unseal(ctx, q, a.TenantID, row, sealed, version); err != nil || got.Reveal() != plain {
		t.Fatalf("opened %q, %v", got.Reveal(), err)
	}
	flipped := bytes.Clone(sealed)
	flipped[len(flipped)-1] ^= 1
	for name, open := range map[string]func() (secret.Value, error){
		"another row": func() (secret.Value, error) { return d.Keys.Unseal(ctx, q, a.TenantID, other, sealed, version) },
		"another account": func() (secret.Value, error) {
			return d.Keys.Unseal(ctx, d.Tenant(b.TenantID), b.TenantID, row, sealed, version)
		},
		"a damaged value":     func() (secret.Value, error) { return d.Keys.Unseal(ctx, q, a.TenantID, row, flipped, version) },
		"a cut value":         func() (secret.Value, error) { return d.Keys.Unseal(ctx, q, a.TenantID, row, sealed[:5], version) },
		"no value":            func() (secret.Value, error) { return d.Keys.Unseal(ctx, q, a.TenantID, row, nil, version) },
		"another key version": func() (secret.Value, error) { return d.Keys.Unseal(ctx, q, a.TenantID, row, sealed, version+1) },
		"another master key": func() (secret.Value, error) {
			keys, err := secret.Open(bytes.Repeat([]byte{7}, secret.KeySize))
			if err != nil {
				t.Fatal(err)
			}
			return keys.Unseal(ctx, q, a.TenantID, row, sealed, version)
		},
	} {
		if got, err := open(); !errors.Is(err, secret.ErrSealed) || !got.Empty() {
			t.Errorf("%s: opened %v, %v", name, !got.Empty(), err)
		}
	}
	// Queries of one account and the id of another: what a forgotten filter would do, with nothing in the cache.
	fresh, err := secret.Open([]byte("a master key of 32 bytes, really!")[:secret.KeySize])
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := fresh.Seal(ctx, q, b.TenantID, row, secret.New(plain)); err == nil {
		t.Error("sealed for an account with the queries of another")
	}
}

func TestSealingInsideATransactionUsesItsConnection(t *testing.T) {
	t.Parallel()
	d := identitytest.NewWith(t, discard, db.Options{MaxConns: 1})
	a := d.Account(t)
	ctx := context.Background()
	err := d.InTenant(ctx, a.TenantID, func(tx db.Tx) error {
		_, _, err := d.Keys.Seal(ctx, tx.Queries, a.TenantID, uuid.New(), secret.New(plain))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAMasterKeyIsReadInEveryUsualForm(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{0xfb, 0xff}, secret.KeySize/2)
	for _, s := range []string{
		hex.EncodeToString(key), strings.ToUpper(hex.EncodeToString(key)), " " + hex.EncodeToString(key) + "\n",
		base64.StdEncoding.EncodeToString(key), base64.RawStdEncoding.EncodeToString(key),
		base64.URLEncoding.EncodeToString(key), base64.RawURLEncoding.EncodeToString(key),
	} {
		if got, err := secret.ParseMasterKey(s); err != nil || !bytes.Equal(got, key) {
			t.Errorf("%q: %x, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "short", hex.EncodeToString(key[:16]), hex.EncodeToString(key) + "00", "!" + hex.EncodeToString(key)[1:]} {
		if _, err := secret.ParseMasterKey(s); err == nil {
			t.Errorf("%q was taken for a key", s)
		} else if s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("the error repeats the key: %v", err)
		}
	}
}

func TestTheKeyFileIsMadeOncePrivateAndRefusedWhenOthersMayReadIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "master.key")
	var wg sync.WaitGroup
	keys := make([][]byte, 8)
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = secret.MasterKeyFile(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if !bytes.Equal(k, keys[0]) || len(k) != secret.KeySize {
			t.Fatal("two starts made two keys")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode is %v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".master-key-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.MasterKeyFile(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable key file: %v", err)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.MasterKeyFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged key file: %v", err)
	}
	if _, err := secret.MasterKeyFile(filepath.Join(t.TempDir(), "none", "master.key")); err == nil {
		t.Error("a directory that is not there was no error")
	}
}
