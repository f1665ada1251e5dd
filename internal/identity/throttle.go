package identity

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"time"

	"managoat/internal/refusal"
)

// Sign-ins that may fail within one window. The count is in the database, so that it holds for all servers together and
// over their restarts, on the database's clock. Whether the e-mail is known makes no difference.
const (
	throttleWindow = 15 * time.Minute
	perPair        = 10  // from one address for one e-mail: who mistypes, or guesses
	perEmail       = 100 // for one e-mail: a guesser with many addresses
	perAddress     = 100 // from one address: a guesser with many e-mails
)

// attempt is one sign-in as the throttle knows it.
type attempt struct{ pair, email, address []byte }

func newAttempt(email, address string) attempt {
	address = Network(address)
	key := func(parts ...string) []byte {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
		return sum[:]
	}
	return attempt{pair: key("pair", email, address), email: key("email", email), address: key("address", address)}
}

// Network is what one client has: an IPv4 address, or the /64 of an IPv6 one. What is no IP address stays as it is.
func Network(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.String()
		}
	}
	return addr.String()
}

// take counts the attempt before the password is looked at, so that guesses sent together count too.
func (s *Service) take(ctx context.Context, a attempt) error {
	for _, c := range []struct {
		key   []byte
		limit int32
	}{{a.pair, perPair}, {a.address, perAddress}, {a.email, perEmail}} {
		got, err := s.db.Lookup().TakeSignIn(ctx, c.key, throttleWindow.Seconds())
		if err != nil {
			return fmt.Errorf("count the sign-in: %w", err)
		}
		if got.Attempts > c.limit {
			wait := time.Duration(got.EndsIn * float64(time.Second))
			return refusal.New(refusal.RateLimited, "Too many sign-ins failed. Try again in %s.", max(wait, time.Second).Round(time.Second)).RetryAfter(wait)
		}
	}
	return nil
}

// forget takes a sign-in that succeeded out of the count, and clears away windows that have ended.
func (s *Service) forget(ctx context.Context, a attempt) error {
	q := s.db.Lookup()
	if err := q.ForgetSignIns(ctx, a.pair); err != nil {
		return fmt.Errorf("forget the sign-in: %w", err)
	}
	for _, key := range [][]byte{a.email, a.address} {
		if err := q.GiveBackSignIn(ctx, key); err != nil {
			return fmt.Errorf("forget the sign-in: %w", err)
		}
	}
	if err := q.PurgeSignIns(ctx); err != nil {
		return fmt.Errorf("clear away old sign-ins: %w", err)
	}
	return nil
}
