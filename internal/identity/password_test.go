package identity

import (
	"context"
	"strings"
	"testing"

	"managoat/internal/secret"
)

func TestAPasswordIsStoredAsArgon2idWithItsParametersAndASaltOfItsOwn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	password := secret.New("pässword with ünicode")
	one, err := DefaultCost.hash(ctx, password)
	if err != nil {
		t.Fatal(err)
	}
	two, err := DefaultCost.hash(ctx, password)
	if err != nil {
		t.Fatal(err)
	}
	if one == two || !strings.HasPrefix(one, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("stored as %s and %s", one, two)
	}
	// Hashes made with other parameters go on working.
	old := "$argon2id$v=19$m=64,t=1,p=2$c29tZXNhbHQ$" + strings.Split(one, "$")[5]
	for stored, want := range map[string]bool{one: true, two: true, old: false} {
		if ok, err := verifyPassword(ctx, stored, password); err != nil || ok != want {
			t.Errorf("%s: %v, %v", stored, ok, err)
		}
		if ok, err := verifyPassword(ctx, stored, secret.New("another")); err != nil || ok {
			t.Errorf("%s opens with another password (%v)", stored, err)
		}
	}
}

func TestAStoredHashThatCannotBeReadIsAnErrorAndNeverAMatch(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{
		"", "plain", "$argon2i$v=19$m=64,t=1,p=1$c2FsdA$aGFzaA", "$argon2id$v=18$m=64,t=1,p=1$c2FsdA$aGFzaA", "$argon2id$v=19$m=64,t=0,p=1$c2FsdA$aGFzaA",
		"$argon2id$v=19$m=64,t=1,p=0$c2FsdA$aGFzaA", "$argon2id$v=19$m=99999999,t=1,p=1$c2FsdA$aGFzaA", "$argon2id$v=19$m=64,t=1,p=1$$aGFzaA",
		"$argon2id$v=19$m=64,t=1,p=1$c2FsdA$", "$argon2id$v=19$m=64,t=1,p=1$!$aGFzaA", "$argon2id$v=19$m=64,t=1,p=1$c2FsdA$aGFzaA$",
	} {
		if ok, err := verifyPassword(context.Background(), stored, secret.New("")); err == nil || ok {
			t.Errorf("%q: %v, %v", stored, ok, err)
		}
	}
}

func TestAHashWaitsForItsTurnNoLongerThanItsRequest(t *testing.T) {
	// Not parallel: it takes every turn.
	for range cap(hashing) {
		hashing <- struct{}{}
	}
	defer func() {
		for range cap(hashing) {
			<-hashing
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := DefaultCost.hash(ctx, secret.New("x")); err == nil {
		t.Error("hashed past the limit")
	}
}
