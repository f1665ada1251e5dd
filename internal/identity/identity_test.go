package identity_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"managoat/db"
	"managoat/internal/identity"
	"managoat/internal/identity/identitytest"
	"managoat/internal/input"
	"managoat/internal/refusal"
	"managoat/internal/secret"
	"managoat/internal/tenant"
)

var ctx = context.Background()

func owner(email string) identity.OwnerInput {
	return identity.OwnerInput{Email: email, Password: secret.New(identitytest.Password)}
}

func want(t *testing.T, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	r, ok := refusal.As(err)
	if !ok || r.Code != code {
		t.Fatalf("got %v, want the refusal %s", err, code)
	}
	return r
}

func count(t *testing.T, d *identitytest.Instance, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := d.Owner(t).QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCreateOwnerMakesAnAccountAndASecondAddressMakesAnother(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	if has, err := d.People.HasAccounts(ctx); err != nil || has {
		t.Fatalf("a new database has accounts: %v, %v", has, err)
	}
	one, key, err := d.People.CreateOwner(ctx, "ada", owner(" Ada@Example.com "))
	if err != nil {
		t.Fatal(err)
	}
	if one.Email != "ada@example.com" || one.Account != "ada@example.com" || !strings.HasPrefix(key.Plain.Reveal(), "mgt_") {
		t.Fatalf("made %+v with a key %s…", one, key.Prefix)
	}
	two, other, err := d.People.CreateOwner(ctx, "ada", owner("bob@example.com"))
	if err != nil {
		t.Fatal(err)
	}
	if one.TenantID == two.TenantID || one.IdentityID == two.IdentityID || key.Plain.Equal(other.Plain) {
		t.Fatal("the second address got the first account")
	}
	_, _, err = d.People.CreateOwner(ctx, "ada", owner("ADA@example.com"))
	r := want(t, err, refusal.EmailTaken)
	if !strings.Contains(r.Message, "ada@example.com has an account") || refusal.FieldErrors(r)["email"] == nil {
		t.Errorf("says %q", r.Message)
	}
	for _, c := range []struct {
		sql  string
		want int
	}{
		{"select count(*) from tenants", 2}, {"select count(*) from tenant_heads", 2}, {"select count(*) from quotas", 2},
		{"select count(*) from memberships where role = 'owner'", 2}, {"select count(*) from api_keys where scope = 'full'", 2},
		{"select count(*) from platform_access where operator = 'ada'", 2},
	} {
		if n := count(t, d, c.sql); n != c.want {
			t.Errorf("%s: %d, want %d", c.sql, n, c.want)
		}
	}
	if has, err := d.People.HasAccounts(ctx); err != nil || !has {
		t.Fatalf("has accounts: %v, %v", has, err)
	}
	actor, err := d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	if err != nil || actor.TenantID != one.TenantID || actor.IdentityID != one.IdentityID || actor.Scope != tenant.ScopeFull || actor.Kind != tenant.Key {
		t.Fatalf("the key is %+v, %v", actor, err)
	}
	me, err := d.People.Me(ctx, actor)
	if err != nil || me.Email != "ada@example.com" || me.Role != "owner" || me.AccountID != one.TenantID || me.Scopes[0] != "full" || me.ExpiresAt != nil {
		t.Fatalf("me is %+v, %v", me, err)
	}
	members, err := d.People.Members(ctx, actor)
	if err != nil || len(members) != 1 || members[0].Email != "ada@example.com" {
		t.Fatalf("members are %+v, %v", members, err)
	}
}

func TestAnOwnersInputIsRefusedByField(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	for name, c := range map[string]struct {
		in    identity.OwnerInput
		field string
	}{
		"no address":          {identity.OwnerInput{Password: secret.New("long enough")}, "email"},
		"not an address":      {identity.OwnerInput{Email: "ada", Password: secret.New("long enough")}, "email"},
		"a name with it":      {identity.OwnerInput{Email: "Ada <ada@example.com>", Password: secret.New("long enough")}, "email"},
		"two addresses":       {identity.OwnerInput{Email: "a@example.com, b@example.com", Password: secret.New("long enough")}, "email"},
		"a long address":      {identity.OwnerInput{Email: strings.Repeat("a", 400) + "@example.com", Password: secret.New("long enough")}, "email"},
		"a NUL in it":         {identity.OwnerInput{Email: "a\x00b@example.com", Password: secret.New("long enough")}, "email"},
		"no password":         {identity.OwnerInput{Email: "ada@example.com"}, "password"},
		"a short password":    {identity.OwnerInput{Email: "ada@example.com", Password: secret.New("seven77")}, "password"},
		"a huge password":     {identity.OwnerInput{Email: "ada@example.com", Password: secret.New(strings.Repeat("x", 2000))}, "password"},
		"a name of two lines": {identity.OwnerInput{Email: "ada@example.com", Password: secret.New("long enough"), Account: "a\nb"}, "account"},
	} {
		_, _, err := d.People.CreateOwner(ctx, "ada", c.in)
		if fields := refusal.FieldErrors(want(t, err, refusal.ValidationFailed)); len(fields[c.field]) == 0 {
			t.Errorf("%s: refused with %v, want %s", name, fields, c.field)
		}
	}
	if n := count(t, d, "select count(*) from tenants"); n != 0 {
		t.Errorf("%d accounts were made", n)
	}
}

func TestASetupLinkWorksOnceEvenWhenTwoBrowsersRace(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	token, expires, err := d.People.SetupLink(ctx)
	if err != nil || time.Until(expires) < time.Hour {
		t.Fatalf("a link until %s, %v", expires, err)
	}
	second, _, err := d.People.SetupLink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.People.CheckSetupLink(ctx, token.Reveal()); err != nil {
		t.Fatal(err)
	}
	// Refused for its input, it works on.
	_, err = d.People.UseSetupLink(ctx, token.Reveal(), identity.OwnerInput{Email: "ada@example.com", Password: secret.New("short")}, identity.Client{})
	want(t, err, refusal.ValidationFailed)

	// Four browsers, two links: one account.
	links := []secret.Value{token, token, second, second}
	sessions := make([]identity.NewSession, len(links))
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, link := range links {
		wg.Go(func() {
			sessions[i], errs[i] = d.People.UseSetupLink(ctx, link.Reveal(), owner(strings.Repeat("a", i+1)+"@example.com"), identity.Client{Address: "192.0.2.1"})
		})
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		if err == nil {
			if winner >= 0 {
				t.Fatal("two browsers made an account")
			}
			winner = i
		} else {
			want(t, err, refusal.SetupLinkInvalid)
		}
	}
	if winner < 0 || count(t, d, "select count(*) from tenants") != 1 || count(t, d, "select count(*) from identities") != 1 {
		t.Fatalf("accounts were not made once: %v", errs)
	}
	actor, err := d.People.AuthenticateSession(ctx, sessions[winner].Token.Reveal())
	if err != nil || actor.Kind != tenant.User || actor.Role != "owner" {
		t.Fatalf("the session is %+v, %v", actor, err)
	}
	for _, link := range links {
		want(t, d.People.CheckSetupLink(ctx, link.Reveal()), refusal.SetupLinkInvalid)
	}
}

func TestASetupLinkThatExpiredOrCameBeforeAnAccountIsWorthNothing(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	token, _, err := d.People.SetupLink(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Owner(t).Exec(ctx, "update setup_links set expires_at = now() - interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	_, err = d.People.UseSetupLink(ctx, token.Reveal(), owner("ada@example.com"), identity.Client{})
	want(t, err, refusal.SetupLinkInvalid)

	if token, _, err = d.People.SetupLink(ctx); err != nil {
		t.Fatal(err)
	}
	d.Account(t) // made on the command line meanwhile
	_, err = d.People.UseSetupLink(ctx, token.Reveal(), owner("eve@example.com"), identity.Client{})
	want(t, err, refusal.SetupLinkInvalid)
	_, err = d.People.UseSetupLink(ctx, "never was one", owner("eve@example.com"), identity.Client{})
	want(t, err, refusal.SetupLinkInvalid)
}

func TestSignInAnswersTheSameForAWrongPasswordAndAnUnknownAddress(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := identitytest.NewWith(t, slog.New(slog.NewJSONHandler(&log, nil)), db.Options{})
	a := d.Account(t)
	session, err := d.People.SignIn(ctx, strings.ToUpper(a.Email), secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1", UserAgent: "a browser\x00" + strings.Repeat("x", 1000)})
	if err != nil {
		t.Fatal(err)
	}
	actor, err := d.People.AuthenticateSession(ctx, session.Token.Reveal())
	if err != nil || actor.TenantID != a.TenantID || actor.Email != a.Email {
		t.Fatalf("signed in as %+v, %v", actor, err)
	}
	_, wrong := d.People.SignIn(ctx, a.Email, secret.New("not the password"), identity.Client{Address: "192.0.2.1"})
	_, unknown := d.People.SignIn(ctx, "nobody@example.com", secret.New("not the password"), identity.Client{Address: "192.0.2.1"})
	if want(t, wrong, refusal.SignInFailed).Message != want(t, unknown, refusal.SignInFailed).Message {
		t.Error("the two answers differ")
	}
	for _, odd := range []string{"", "\x00", "' or 1=1 --", strings.Repeat("a", 5000)} {
		_, err := d.People.SignIn(ctx, odd, secret.New("x"), identity.Client{Address: "192.0.2.2"})
		want(t, err, refusal.SignInFailed)
	}
	if out := log.String(); strings.Contains(out, a.Email) || strings.Contains(out, "password") || !strings.Contains(out, "192.0.2.1") {
		t.Errorf("the log says %s", out)
	}
	// The time is that of one hash either way; without one it would be a twentieth. The machine may be busy meanwhile.
	elapsed := func(email string) time.Duration {
		best := time.Hour
		for i := range 3 {
			start := time.Now()
			if _, err := d.People.SignIn(ctx, email, secret.New("not the password"), identity.Client{Address: "198.51.100." + string(rune('1'+i))}); err == nil {
				t.Fatal("signed in")
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	known, nobody := elapsed(a.Email), elapsed("nobody@example.com")
	if nobody < known/8 || known < nobody/8 {
		t.Errorf("a known address takes %s, an unknown one %s", known, nobody)
	}
}

func TestSignInIsThrottledPerAccountAndAddressOverAllServers(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	other := identity.NewService(d.DB, d.Keys, slog.New(slog.DiscardHandler)) // a second server
	guess := func(s *identity.Service, email, address string) error {
		_, err := s.SignIn(ctx, email, secret.New("a guess"), identity.Client{Address: address})
		return err
	}
	for i := range 10 {
		want(t, guess([]*identity.Service{d.People, other}[i%2], a.Email, "192.0.2.1"), refusal.SignInFailed)
	}
	for _, s := range []*identity.Service{d.People, other} {
		r := want(t, guess(s, a.Email, "192.0.2.1"), refusal.RateLimited)
		if n := r.RetryAfterSeconds(); n < 1 || n > 900 {
			t.Errorf("retry after %d s", n)
		}
	}
	// The right password does not pass either, from there; from elsewhere the person still gets in.
	_, err := d.People.SignIn(ctx, a.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"})
	want(t, err, refusal.RateLimited)
	if _, err := d.People.SignIn(ctx, a.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.9"}); err != nil {
		t.Fatal(err)
	}
	// An address that is nobody's is throttled alike.
	for range 10 {
		want(t, guess(d.People, "nobody@example.com", "192.0.2.3"), refusal.SignInFailed)
	}
	want(t, guess(d.People, "nobody@example.com", "192.0.2.3"), refusal.RateLimited)
	// A client has a whole /64.
	for i := range 10 {
		want(t, guess(d.People, "v6@example.com", "2001:db8::"+string(rune('1'+i%9))), refusal.SignInFailed)
	}
	want(t, guess(d.People, "v6@example.com", "2001:db8::ffff"), refusal.RateLimited)
	// The window ends, on the database's clock.
	if _, err := d.Owner(t).Exec(ctx, "update sign_in_attempts set until = now() - interval '1 second'"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.People.SignIn(ctx, a.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, d, "select count(*) from sign_in_attempts where until <= now()"); n != 0 {
		t.Errorf("%d ended windows are still there", n)
	}
}

func TestGuessesSentTogetherAreCountedBeforeThePasswordIsLookedAt(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	var looked atomic.Int64
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			_, err := d.People.SignIn(ctx, a.Email, secret.New("a guess"), identity.Client{Address: "192.0.2.1"})
			if refusal.Is(err, refusal.SignInFailed) {
				looked.Add(1)
			} else if !refusal.Is(err, refusal.RateLimited) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if looked.Load() != 10 {
		t.Errorf("%d guesses were looked at, 10 may be", looked.Load())
	}
}

func TestSessionsAreListedAndEndedByTheirPersonOnly(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	signIn := func(x identitytest.Account, agent string) (identity.NewSession, tenant.Actor) {
		s, err := d.People.SignIn(ctx, x.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1", UserAgent: agent})
		if err != nil {
			t.Fatal(err)
		}
		actor, err := d.People.AuthenticateSession(ctx, s.Token.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		return s, actor
	}
	laptop, onLaptop := signIn(a, "laptop")
	phone, onPhone := signIn(a, "phone")
	_, foreign := signIn(b, "other")

	list, err := d.People.Sessions(ctx, onLaptop)
	if err != nil || len(list) != 2 {
		t.Fatalf("sessions are %+v, %v", list, err)
	}
	for _, s := range list {
		if s.Current != (s.UserAgent == "laptop") || s.Address != "192.0.2.1" {
			t.Errorf("session %+v", s)
		}
	}
	want(t, d.People.RevokeSession(ctx, foreign, onPhone.SessionID), refusal.NotFound)
	want(t, d.People.RevokeSession(ctx, onLaptop, uuid.New()), refusal.NotFound)
	if err := d.People.RevokeSession(ctx, onLaptop, onPhone.SessionID); err != nil {
		t.Fatal(err)
	}
	_, err = d.People.AuthenticateSession(ctx, phone.Token.Reveal())
	want(t, err, refusal.SignInRequired)
	if err := d.People.SignOut(ctx, onLaptop); err != nil {
		t.Fatal(err)
	}
	_, err = d.People.AuthenticateSession(ctx, laptop.Token.Reveal())
	want(t, err, refusal.SignInRequired)

	expired, _ := signIn(a, "old")
	if _, err := d.Owner(t).Exec(ctx, "update sessions set expires_at = now() where user_agent = 'old'"); err != nil {
		t.Fatal(err)
	}
	_, err = d.People.AuthenticateSession(ctx, expired.Token.Reveal())
	want(t, err, refusal.SignInRequired)
	// A session's token is no key, and a key is no session.
	_, err = d.People.AuthenticateKey(ctx, laptop.Token.Reveal())
	want(t, err, refusal.Unauthenticated)
	_, err = d.People.AuthenticateSession(ctx, a.Key)
	want(t, err, refusal.SignInRequired)
	if n := count(t, d, "select count(*) from sessions where encode(token_hash, 'escape') like '%' || $1 || '%'", laptop.Token.Reveal()[:20]); n != 0 {
		t.Error("a token is stored as it is")
	}
}

func TestAKeyIsShownOnceRevokedExpiredOrSuspendedWithItsOwnCode(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	later := time.Now().Add(time.Hour)
	key, err := d.People.CreateKey(ctx, a.Actor, identity.KeyInput{Name: " CI ", ExpiresAt: &later})
	if err != nil || key.Name != "CI" || key.Prefix != key.Plain.Reveal()[:12] || !key.ExpiresAt.Equal(later.Truncate(time.Microsecond)) {
		t.Fatalf("made %+v, %v", key, err)
	}
	if len(key.Plain.Reveal()) != len("mgt_")+43 {
		t.Errorf("a key of %d characters", len(key.Plain.Reveal()))
	}
	past := time.Now().Add(-time.Hour)
	_, err = d.People.CreateKey(ctx, a.Actor, identity.KeyInput{Name: "late", ExpiresAt: &past})
	want(t, err, refusal.ValidationFailed)
	_, err = d.People.CreateKey(ctx, a.Actor, identity.KeyInput{Name: "  "})
	want(t, err, refusal.ValidationFailed)

	list, err := d.People.Keys(ctx, a.Actor, input.Page{})
	if err != nil || len(list.Items) != 2 || list.Items[0].ID != key.ID || list.HasMore {
		t.Fatalf("keys are %+v, %v", list, err)
	}
	if foreign, err := d.People.Keys(ctx, b.Actor, input.Page{}); err != nil || slices.ContainsFunc(foreign.Items, func(k identity.Key) bool { return k.ID == key.ID }) {
		t.Fatalf("another account sees %+v, %v", foreign, err)
	}
	if _, err := d.People.AuthenticateKey(ctx, key.Plain.Reveal()); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := d.Owner(t).Exec(ctx, sql, key.ID); err != nil {
			t.Fatal(err)
		}
	}
	exec("update api_keys set expires_at = now() where id = $1")
	_, err = d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	want(t, err, refusal.KeyExpired)
	exec("update api_keys set expires_at = null where id = $1")
	exec("update tenants set suspended_at = now() where tenant_id = (select tenant_id from api_keys where id = $1)")
	_, err = d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	want(t, err, refusal.AccountSuspended)
	exec("update tenants set suspended_at = null where tenant_id = (select tenant_id from api_keys where id = $1)")

	want(t, d.People.RevokeKey(ctx, b.Actor, key.ID), refusal.NotFound)
	if err := d.People.RevokeKey(ctx, a.Actor, key.ID); err != nil {
		t.Fatal(err)
	}
	want(t, d.People.RevokeKey(ctx, a.Actor, key.ID), refusal.NotFound)
	_, err = d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	want(t, err, refusal.KeyRevoked)
	if list, err := d.People.Keys(ctx, a.Actor, input.Page{}); err != nil || len(list.Items) != 1 {
		t.Errorf("after the revoke: %+v, %v", list, err)
	}
	for _, unknown := range []string{"", "mgt_", "mgt_unknown", "Bearer x", "mgt_\x00"} {
		_, err := d.People.AuthenticateKey(ctx, unknown)
		want(t, err, refusal.Unauthenticated)
	}
}

func TestTheLastUseOfAKeyIsWrittenAtMostOnceAMinuteByItsOwner(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	use := func() {
		t.Helper()
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- d.People.Run(run) }()
		for range 5 {
			if _, err := d.People.AuthenticateKey(ctx, a.Key); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := <-ended; err != nil { // what waited is written before Run ends
			t.Fatal(err)
		}
	}
	last := func() time.Time {
		t.Helper()
		list, err := d.People.Keys(ctx, a.Actor, input.Page{})
		if err != nil || len(list.Items) != 1 || list.Items[0].LastUsedAt == nil {
			t.Fatalf("keys are %+v, %v", list, err)
		}
		return *list.Items[0].LastUsedAt
	}
	use()
	first := last()
	use()
	if again := last(); !again.Equal(first) {
		t.Error("a second use within a minute was written")
	}
	if _, err := d.Owner(t).Exec(ctx, "update api_keys set last_used_at = now() - interval '61 seconds'"); err != nil {
		t.Fatal(err)
	}
	use()
	if again := last(); again.Before(first) {
		t.Error("a use after a minute was not written")
	}
}

func TestASandboxKeyBelongsToItsConversationAndEndsWithIt(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a, b := d.Account(t), d.Account(t)
	conversation := uuid.New()
	var key identity.CreatedKey
	err := d.InTenant(ctx, a.TenantID, func(tx db.Tx) (err error) {
		key, err = identity.MintSandboxKey(ctx, tx, tenant.SystemActor(a.TenantID, "turn"), conversation, time.Hour)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	actor, err := d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	if err != nil || actor.Kind != tenant.Sandbox || actor.Scope != tenant.ScopeSandbox || actor.ConversationID != conversation {
		t.Fatalf("the key is %+v, %v", actor, err)
	}
	me, err := d.People.Me(ctx, actor)
	if err != nil || me.Scopes[0] != "sandbox:"+conversation.String() || me.ExpiresAt == nil || *me.ConversationID != conversation {
		t.Fatalf("me is %+v, %v", me, err)
	}
	if list, err := d.People.Keys(ctx, a.Actor, input.Page{}); err != nil || len(list.Items) != 1 {
		t.Errorf("people's keys are %+v, %v", list, err)
	}
	revoke := func(tenantID uuid.UUID) {
		t.Helper()
		if err := d.InTenant(ctx, tenantID, func(tx db.Tx) error {
			return identity.RevokeSandboxKeys(ctx, tx, tenant.SystemActor(tenantID, "turn"), conversation)
		}); err != nil {
			t.Fatal(err)
		}
	}
	revoke(b.TenantID) // another account's transaction reaches nothing
	if _, err := d.People.AuthenticateKey(ctx, key.Plain.Reveal()); err != nil {
		t.Fatal(err)
	}
	revoke(a.TenantID)
	_, err = d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	want(t, err, refusal.KeyRevoked)
}

func TestATokenForClientsIsAKeyOfWhoKnowsThePassword(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	a := d.Account(t)
	_, err := d.People.Token(ctx, a.Email, secret.New("not the password"), identity.Client{Address: "192.0.2.1"})
	want(t, err, refusal.SignInFailed)
	key, err := d.People.Token(ctx, a.Email, secret.New(identitytest.Password), identity.Client{Address: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	actor, err := d.People.AuthenticateKey(ctx, key.Plain.Reveal())
	if err != nil || actor.TenantID != a.TenantID {
		t.Fatalf("the key is %+v, %v", actor, err)
	}
}

func TestAnotherMasterKeyIsNoticedBeforeAnythingIsServed(t *testing.T) {
	t.Parallel()
	d := identitytest.New(t)
	if err := d.People.CheckMasterKey(ctx); err != nil {
		t.Fatalf("without accounts: %v", err)
	}
	d.Account(t)
	if err := d.People.CheckMasterKey(ctx); err != nil {
		t.Fatal(err)
	}
	keys, err := secret.Open(bytes.Repeat([]byte{9}, secret.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	other := identity.NewService(d.DB, keys, slog.New(slog.DiscardHandler))
	if err := other.CheckMasterKey(ctx); err == nil || !strings.Contains(err.Error(), "MANAGOAT_MASTER_KEY") {
		t.Errorf("another key: %v", err)
	}
}
