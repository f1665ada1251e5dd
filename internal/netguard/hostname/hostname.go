// Package hostname reads host names, ports and host patterns: folded to one form, and malformed when they could
// be read in two ways. It is the one host matcher: whatever asks whether a host is meant (a policy, an allowance,
// a credential that belongs to a host) asks here, so that no two answers can disagree. It is pure: no network.
package hostname

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// ErrMalformed is wrapped by every error about a host or a pattern that cannot be read. Whoever decides treats
// it as a refusal.
var ErrMalformed = errors.New("malformed host")

// DefaultPorts are what a pattern without a port stands for: the ports of http and https.
var DefaultPorts = []int{80, 443}

// Sizes of names, from RFC 1035 section 2.3.4.
const (
	maxHostLength  = 253
	maxLabelLength = 63
)

// Fold folds a host name or address to the one form that is compared: lower case, no trailing dot, ASCII
// (IDNA), an address in its canonical text without brackets. What could be read in two ways is malformed: an
// address in another notation than the usual one (127.1, 0x7f000001), a zone, an empty label.
func Fold(s string) (string, error) {
	host := s
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(inner, ":") {
			return "", malformed(s, "brackets are for IPv6 addresses")
		}
		host = inner
	}
	if strings.Contains(host, ":") {
		addr, err := netip.ParseAddr(host)
		if err != nil || addr.Zone() != "" {
			return "", malformed(s, "not an IPv6 address")
		}
		return addr.String(), nil
	}
	host = strings.TrimSuffix(host, ".")
	if !ascii(host) {
		folded, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", malformed(s, "not an international name")
		}
		host = folded
	}
	host = strings.ToLower(host)
	if host == "" || len(host) > maxHostLength {
		return "", malformed(s, "empty or too long")
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if !validLabel(label) {
			return "", malformed(s, "labels hold letters, digits, - and _")
		}
		last = label
	}
	if numeric(last) {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			return "", malformed(s, "not an IPv4 address in its usual form")
		}
		return addr.String(), nil
	}
	return host, nil
}

// SplitPort splits host:port as a CONNECT request names it. Both parts must be there.
func SplitPort(s string) (host string, port int, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, malformed(s, "a port is missing")
	}
	name := s[:i]
	if strings.Contains(name, ":") && !strings.HasPrefix(name, "[") {
		return "", 0, malformed(s, "IPv6 addresses stand in brackets")
	}
	if port, err = Port(s[i+1:]); err != nil {
		return "", 0, err
	}
	if host, err = Fold(name); err != nil {
		return "", 0, err
	}
	return host, port, nil
}

// Port reads a port number, 1 to 65535, digits only.
func Port(s string) (int, error) {
	if s == "" || len(s) > 5 || strings.Trim(s, "0123456789") != "" {
		return 0, malformed(s, "a port is a number from 1 to 65535")
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0, malformed(s, "a port is a number from 1 to 65535")
	}
	return n, nil
}

// Pattern names one host, or every name below one: `example.com`, `*.example.com`, `example.com:8443`,
// `[2001:db8::1]:443`.
type Pattern struct {
	host     string
	wildcard bool
	port     int // 0: DefaultPorts
}

// ParsePattern reads a pattern. A wildcard stands for one or more whole labels at the start and never for the
// name below it.
func ParsePattern(s string) (Pattern, error) {
	var p Pattern
	rest := s
	if strings.Contains(rest, "/") {
		return p, malformed(s, "write a host without scheme and path")
	}
	// What follows the last colon is a port, unless the colon belongs to a bare IPv6 address.
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && (strings.HasSuffix(rest[:i], "]") || !strings.Contains(rest[:i], ":")) {
		port, err := Port(rest[i+1:])
		if err != nil {
			return p, malformed(s, "a port is a number from 1 to 65535")
		}
		p.port, rest = port, rest[:i]
	}
	if below, ok := strings.CutPrefix(rest, "*."); ok {
		p.wildcard, rest = true, below
	}
	host, err := Fold(rest)
	if err != nil {
		return Pattern{}, err
	}
	if _, err := netip.ParseAddr(host); err == nil && p.wildcard {
		return Pattern{}, malformed(s, "an address has no wildcard")
	}
	p.host = host
	return p, nil
}

// String is the pattern in its folded form.
func (p Pattern) String() string {
	s := p.host
	if strings.Contains(s, ":") {
		s = "[" + s + "]"
	}
	if p.wildcard {
		s = "*." + s
	}
	if p.port != 0 {
		s += ":" + strconv.Itoa(p.port)
	}
	return s
}

// Match tells whether the pattern means this host, already folded, at this port.
func (p Pattern) Match(host string, port int) bool {
	return p.MatchHost(host) && (p.port == port || p.port == 0 && slices.Contains(DefaultPorts, port))
}

// MatchHost tells whether the pattern means this host, already folded, at some port.
func (p Pattern) MatchHost(host string) bool {
	if p.host == "" {
		return false
	}
	if !p.wildcard {
		return host == p.host
	}
	// The dot before the suffix keeps notexample.com out, the length keeps the apex out.
	return len(host) > len(p.host)+1 && strings.HasSuffix(host, "."+p.host)
}

// Best finds the pattern that decides about a host: exact before wildcard, the longer wildcard before the
// shorter, a named port before the default ones. It returns -1 when none matches.
func Best(patterns []Pattern, host string, port int) int {
	best := -1
	for i, p := range patterns {
		if p.Match(host, port) && (best < 0 || p.outranks(patterns[best])) {
			best = i
		}
	}
	return best
}

func (p Pattern) outranks(q Pattern) bool {
	if p.wildcard != q.wildcard {
		return !p.wildcard
	}
	if len(p.host) != len(q.host) {
		return len(p.host) > len(q.host)
	}
	return p.port != 0 && q.port == 0
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func validLabel(s string) bool {
	if s == "" || len(s) > maxLabelLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// numeric tells whether a resolver could take a name that ends in this label for an IPv4 address.
func numeric(label string) bool {
	if strings.Trim(label, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(label, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}

func malformed(s, why string) error { return fmt.Errorf("%w %q: %s", ErrMalformed, s, why) }
