package hostname

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFoldBringsEveryNotationOfAHostToOneForm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com":       "example.com",
		"EXAMPLE.Com":       "example.com",
		"example.com.":      "example.com",
		"localhost":         "localhost",
		"a_b.example.com":   "a_b.example.com",
		"bücher.example":    "xn--bcher-kva.example",
		"BÜCHER.example":    "xn--bcher-kva.example",
		"xn--bcher-kva.com": "xn--bcher-kva.com",
		"192.0.2.1":         "192.0.2.1",
		"192.0.2.1.":        "192.0.2.1",
		"[2001:DB8::1]":     "2001:db8::1",
		"2001:db8:0:0::1":   "2001:db8::1",
		"[::ffff:10.0.0.1]": "::ffff:10.0.0.1",
		"0xface.example":    "0xface.example",
	} {
		if got, err := Fold(in); err != nil || got != want {
			t.Errorf("Fold(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestFoldRefusesWhatTwoReadersCouldReadInTwoWays(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", ".", "..", "a..b", ".example.com", "example.com..", "exa mple.com", "exa\x00mple.com", "exa\tmple.com",
		"example.com/", "user@example.com", "http://example.com", "example.com:443", "-a.example", "a-.example",
		"127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "1.2.3.4.5", "256.1.1.1", "example.1", "a.0x1",
		"[example.com]", "[192.0.2.1]", "[::1", "::1]", "[]", "[fe80::1%eth0]", "fe80::1%1", "[::g]", "::1::",
		"*.example.com", "*", "exam*ple.com", "a%2eexample.com", "a\\b", "xn--a-.example\u3002",
		strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "toolong",
	} {
		if got, err := Fold(in); !errors.Is(err, ErrMalformed) {
			t.Errorf("Fold(%q) = %q, %v, want it malformed", in, got, err)
		}
	}
}

func TestSplitPortWantsBothParts(t *testing.T) {
	t.Parallel()
	host, port, err := SplitPort("[2001:DB8::1]:8443")
	if err != nil || host != "2001:db8::1" || port != 8443 {
		t.Errorf("got %q %d %v", host, port, err)
	}
	for _, in := range []string{"example.com", "example.com:", ":443", "2001:db8::1:443", "example.com:0", "example.com:65536",
		"example.com:+443", "example.com: 443", "example.com:443x", "example.com:000443", "example.com:443:443"} {
		if host, port, err := SplitPort(in); !errors.Is(err, ErrMalformed) {
			t.Errorf("SplitPort(%q) = %q, %d, %v, want it malformed", in, host, port, err)
		}
	}
}

func TestAPatternMeansItsHostsAndNoOther(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		host    string
		port    int
		want    bool
	}{
		{"example.com", "example.com", 443, true},
		{"example.com", "example.com", 80, true},
		{"EXAMPLE.com.", "example.com", 443, true},
		{"example.com", "example.com", 22, false},
		{"example.com", "example.com", 8443, false},
		{"example.com", "a.example.com", 443, false},
		{"example.com", "notexample.com", 443, false},
		{"example.com", "example.com.evil.com", 443, false},
		{"example.com:8443", "example.com", 8443, true},
		{"example.com:8443", "example.com", 443, false},
		{"*.example.com", "a.example.com", 443, true},
		{"*.example.com", "a.b.c.example.com", 443, true},
		{"*.example.com", "example.com", 443, false},
		{"*.example.com", "notexample.com", 443, false},
		{"*.example.com", "a.example.com.evil.com", 443, false},
		{"*.example.com", "aexample.com", 443, false},
		{"*.example.com:22", "a.example.com", 22, true},
		{"*.example.com:22", "a.example.com", 443, false},
		{"*.EXAMPLE.com", "a.example.com", 443, true},
		{"[2001:db8::1]", "2001:db8::1", 443, true},
		{"2001:DB8::1", "2001:db8::1", 443, true},
		{"[2001:db8::1]:8080", "2001:db8::1", 8080, true},
		{"[2001:db8::1]:8080", "2001:db8::1", 443, false},
		{"192.0.2.1", "192.0.2.1", 80, true},
		{"192.0.2.1:5432", "192.0.2.1", 5432, true},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		if got := p.Match(c.host, c.port); got != c.want {
			t.Errorf("%q matches %s:%d: %v, want %v", c.pattern, c.host, c.port, got, c.want)
		}
	}
}

func TestAPatternThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "*", "*.", "**.example.com", "*.*.example.com", "a.*.example.com", "*example.com", "https://example.com",
		"example.com/path", "example.com:", "example.com:*", "example.com:0", "*.192.0.2.1", "*.[2001:db8::1]", "10.0.0.0/8", " example.com", "[2001:db8::1]:x"} {
		if p, err := ParsePattern(in); !errors.Is(err, ErrMalformed) {
			t.Errorf("ParsePattern(%q) = %v, %v, want it malformed", in, p, err)
		}
	}
	if (Pattern{}).Match("", 443) {
		t.Error("the zero pattern matches something")
	}
}

func TestTheMostExactPatternDecides(t *testing.T) {
	t.Parallel()
	patterns := make([]Pattern, 0, 5)
	for _, s := range []string{"*.com", "*.b.example.com", "*.example.com", "a.b.example.com", "a.b.example.com:443"} {
		p, err := ParsePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		patterns = append(patterns, p)
	}
	for host, want := range map[string]string{
		"a.b.example.com": "a.b.example.com:443",
		"x.b.example.com": "*.b.example.com",
		"x.example.com":   "*.example.com",
		"x.com":           "*.com",
		"x.org":           "",
	} {
		for range 2 {
			got := ""
			if i := Best(patterns, host, 443); i >= 0 {
				got = patterns[i].String()
			}
			if got != want {
				t.Errorf("%s is decided by %q, want %q", host, got, want)
			}
			slices.Reverse(patterns) // the order of the entries must not matter
		}
	}
}

func FuzzFold(f *testing.F) {
	for _, s := range []string{"example.com", "EXAMPLE.com.", "[::1]", "127.1", "bücher.example", "*.x", "a:1", "ｅxample。com"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := Fold(s)
		if err != nil {
			return
		}
		if again, err := Fold(host); err != nil || again != host {
			t.Fatalf("Fold(%q) = %q, which folds to %q, %v", s, host, again, err)
		}
		if strings.ContainsAny(host, " \t\r\n/@*[]%") || strings.ToLower(host) != host {
			t.Fatalf("Fold(%q) = %q", s, host)
		}
		if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
			t.Fatalf("Fold(%q) = %q is neither name nor address", s, host)
		}
	})
}

// A pattern made of a host matches that host only; the wildcard above it never matches the host itself.
func FuzzPattern(f *testing.F) {
	f.Add("example.com", "a.example.com")
	f.Add("*.example.com", "notexample.com")
	f.Add("[::1]:80", "::1")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			return
		}
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Fatalf("%q is %+v, which reads back as %+v, %v", pattern, p, again, err)
		}
		host, err := Fold(name)
		if err != nil || !p.MatchHost(host) {
			return
		}
		base := strings.TrimPrefix(p.String(), "*.")
		if p.port != 0 {
			base = base[:strings.LastIndexByte(base, ':')]
		}
		base = strings.Trim(base, "[]")
		if p.wildcard && (host == base || !strings.HasSuffix(host, "."+base)) || !p.wildcard && host != base {
			t.Fatalf("%q matches %q", pattern, host)
		}
	})
}
