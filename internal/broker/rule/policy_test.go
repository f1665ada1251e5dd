package rule

import (
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	unrestricted := Policy{Type: Unrestricted}
	limited := Policy{Type: Limited, AllowedHosts: []string{"Example.com", "*.npm.example", "db.example:5432", "not a host"}}
	for name, c := range map[string]struct {
		policy   Policy
		host     string
		port     int
		operator bool
		allowed  bool
		rule     string
	}{
		"unrestricted opens any public host":                  {unrestricted, "anything.example", 443, false, true, RuleUnrestricted},
		"unrestricted opens git over ssh":                     {unrestricted, "github.com", 22, false, true, RuleUnrestricted},
		"unrestricted keeps other ports closed":               {unrestricted, "anything.example", 25, false, false, RulePort},
		"the operator opens a port":                           {unrestricted, "git.test", 40001, true, true, RuleOperator},
		"limited opens its hosts":                             {limited, "EXAMPLE.com.", 443, false, true, "Example.com"},
		"limited opens names below a wildcard":                {limited, "registry.npm.example", 443, false, true, "*.npm.example"},
		"limited keeps a wildcard's apex closed":              {limited, "npm.example", 443, false, false, RuleAllowedHosts},
		"limited refuses what is not listed":                  {limited, "evil.example", 443, false, false, RuleAllowedHosts},
		"limited opens the ports of the web only":             {limited, "example.com", 22, false, false, RulePort},
		"limited opens a port that is named":                  {limited, "db.example", 5432, false, true, "db.example:5432"},
		"a named port is the only one":                        {limited, "db.example", 443, false, false, RulePort},
		"the operator adds no host to limited":                {limited, "git.test", 443, true, false, RuleAllowedHosts},
		"an entry that cannot be read opens nothing":          {limited, "not a host", 443, false, false, RuleMalformed},
		"limited without hosts opens nothing":                 {Policy{Type: Limited}, "example.com", 443, false, false, RuleAllowedHosts},
		"the zero policy opens nothing":                       {Policy{}, "example.com", 443, true, false, RuleMalformed},
		"an unknown type opens nothing":                       {Policy{Type: "Unrestricted"}, "example.com", 443, true, false, RuleMalformed},
		"a malformed host is refused where all is open":       {unrestricted, "127.1", 443, true, false, RuleMalformed},
		"a port that is none is refused where all is open":    {unrestricted, "example.com", 0, true, false, RuleMalformed},
		"a host that only looks like a listed one is refused": {limited, "example.com.evil.example", 443, false, false, RuleAllowedHosts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := Compile(c.policy).Decide(c.host, c.port, OpenPorts, c.operator)
			if v.Allowed != c.allowed || v.Rule != c.rule {
				t.Errorf("got allowed %v by %q (%s), want %v by %q", v.Allowed, v.Rule, v.Reason, c.allowed, c.rule)
			}
			if v.Reason == "" || !v.Allowed && v.Advice == "" {
				t.Errorf("a verdict without a reason or a refusal without advice: %+v", v)
			}
		})
	}
}

func TestARefusalSaysWhatToAdd(t *testing.T) {
	t.Parallel()
	p := Compile(Policy{Type: Limited, AllowedHosts: []string{"example.com"}})
	for host, want := range map[string]string{"example.com": `"example.com:22"`, "other.example": `"other.example:22"`, "2001:db8::1": `"[2001:db8::1]:22"`} {
		if v := p.Decide(host, 22, OpenPorts, false); !strings.Contains(v.Advice, want) {
			t.Errorf("%s: advice %q does not name %s", host, v.Advice, want)
		}
	}
}

func TestValidateNamesTheBadEntry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy Policy
		want   string
	}{
		{Policy{Type: "open"}, `"open"`},
		{Policy{Type: Limited, AllowedHosts: []string{"example.com", "https://b.example"}}, `"https://b.example"`},
		{Policy{Type: Limited, AllowedHosts: []string{"*"}}, `"unrestricted"`},
	} {
		if err := c.policy.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want it to name %s", c.policy, err, c.want)
		}
	}
	if err := (Policy{Type: Limited, AllowedHosts: []string{"example.com", "*.b.example:8443"}}).Validate(); err != nil {
		t.Error(err)
	}
}
