// Package identitytest gives tests a database with real accounts: owners who signed up, and data keys that open.
package identitytest

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"managoat/db"
	"managoat/db/dbtest"
	"managoat/internal/identity"
	"managoat/internal/secret"
	"managoat/internal/tenant"
)

// Password is that of every owner.
const Password = "correct horse battery staple"

// Instance is one test's database, with its keyring and its people.
type Instance struct {
	*dbtest.Database
	Keys   *secret.Keyring
	People *identity.Service
}

// Account is an account's owner.
type Account struct {
	tenant.Actor        // the owner, acting with the key
	Key          string // full scope
}

// New makes an instance that goes with the test.
func New(tb testing.TB) *Instance {
	tb.Helper()
	return NewWith(tb, slog.New(slog.DiscardHandler), db.Options{})
}

// NewWith is New with a log and options of the pool.
func NewWith(tb testing.TB, log *slog.Logger, opts db.Options) *Instance {
	tb.Helper()
	return On(tb, log, dbtest.NewWith(tb, opts))
}

// On makes an instance on a database.
func On(tb testing.TB, log *slog.Logger, d *dbtest.Database) *Instance {
	tb.Helper()
	i := &Instance{Database: d}
	var err error
	if i.Keys, err = secret.Open([]byte("a master key of 32 bytes, really!")[:secret.KeySize]); err != nil {
		tb.Fatal(err)
	}
	i.People = identity.NewService(i.DB, i.Keys, log)
	i.People.Cost = identity.Cost{Memory: 64, Passes: 1} // nobody attacks these passwords
	return i
}

var owners atomic.Int64

// Account makes an account with an owner.
func (i *Instance) Account(tb testing.TB) Account {
	tb.Helper()
	email := fmt.Sprintf("owner-%d@example.com", owners.Add(1))
	owner, key, err := i.People.CreateOwner(context.Background(), "test", identity.OwnerInput{Email: email, Password: secret.New(Password)})
	if err != nil {
		tb.Fatal(err)
	}
	actor, err := i.People.AuthenticateKey(context.Background(), key.Plain.Reveal())
	if err != nil {
		tb.Fatal(err)
	}
	actor.Email, actor.RequestID, actor.Address = owner.Email, "request-1", "192.0.2.7"
	return Account{Actor: actor, Key: key.Plain.Reveal()}
}
