// Package rule decides which hosts a policy lets a machine reach, and says why. It is pure: no clock, no network.
package rule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"managoat/internal/netguard/hostname"
)

// Types of policies.
const (
	Unrestricted = "unrestricted" // any public host on the instance's ports
	Limited      = "limited"      // AllowedHosts and nothing else; none listed: nothing
)

// Policy says which hosts may be reached. The zero Policy allows nothing.
type Policy struct {
	Type         string   `json:"type"`
	AllowedHosts []string `json:"allowed_hosts"` // patterns, see hostname.ParsePattern; used by Limited
}

// Validate tells the first entry that is wrong, in words for the person who wrote it.
func (p Policy) Validate() error {
	if p.Type != Unrestricted && p.Type != Limited {
		return fmt.Errorf("networking type %q: use %q or %q", p.Type, Unrestricted, Limited)
	}
	for _, entry := range p.AllowedHosts {
		if entry == "*" {
			return fmt.Errorf("%w %q: use the type %q to allow every host", hostname.ErrMalformed, entry, Unrestricted)
		}
		if _, err := hostname.ParsePattern(entry); err != nil {
			return err
		}
	}
	return nil
}

// OpenPorts are the ports an unrestricted policy opens unless the instance names others: ssh, http, https,
// PostgreSQL and git.
var OpenPorts = []int{22, 80, 443, 5432, 9418}

// Names of the rules that decide when no entry of AllowedHosts does.
const (
	RuleUnrestricted = "unrestricted"  // any public host
	RuleAllowedHosts = "allowed_hosts" // refused: no entry matches
	RulePort         = "port"          // refused: the host would do, the port does not
	RuleOperator     = "operator"      // the operator's settings open this host and port
	RuleMalformed    = "malformed"     // refused: host or policy cannot be read
)

// Verdict says what a policy makes of a host, which rule decided, and why.
type Verdict struct {
	Allowed bool   `json:"allowed"`
	Host    string `json:"host"` // folded; as given when it is malformed
	Port    int    `json:"port"`
	Rule    string `json:"rule"` // the entry of AllowedHosts that matched, or one of the Rule names
	Reason  string `json:"reason"`
	Advice  string `json:"advice,omitempty"` // what to do about a refusal
}

// Compiled is a policy ready to decide. Entries that cannot be read match nothing.
type Compiled struct {
	policy   Policy
	patterns []hostname.Pattern
	entries  []string // as written, by index of patterns
}

// Compile reads a policy's patterns once.
func Compile(p Policy) *Compiled {
	c := &Compiled{policy: p}
	for _, entry := range p.AllowedHosts {
		if pattern, err := hostname.ParsePattern(entry); err == nil {
			c.patterns = append(c.patterns, pattern)
			c.entries = append(c.entries, entry)
		}
	}
	return c
}

// AllowedHosts are the policy's entries as they were written.
func (c *Compiled) AllowedHosts() []string { return c.policy.AllowedHosts }

// Decide says whether host may be reached at port. ports are the instance's for unrestricted policies.
// operator tells that the instance's settings name this host and port for machines: it opens the port of an
// unrestricted policy and adds nothing to a limited one.
func (c *Compiled) Decide(host string, port int, ports []int, operator bool) Verdict {
	v := Verdict{Host: host, Port: port}
	folded, err := hostname.Fold(host)
	if err != nil || port < 1 || port > 65535 {
		v.Rule, v.Reason = RuleMalformed, "host or port cannot be read"
		v.Advice = "Use a host name or an address in its usual form, and a port from 1 to 65535."
		return v
	}
	v.Host = folded
	switch c.policy.Type {
	case Unrestricted:
		switch {
		case slices.Contains(ports, port):
			v.Allowed, v.Rule, v.Reason = true, RuleUnrestricted, "the networking type is unrestricted"
		case operator:
			v.Allowed, v.Rule, v.Reason = true, RuleOperator, "the operator allows this host and port"
		default:
			v.Rule, v.Reason = RulePort, fmt.Sprintf("port %d is not one of the open ports %s", port, list(ports))
			v.Advice = "Use one of the open ports, or ask the operator of this instance to open this one."
		}
	case Limited:
		if i := hostname.Best(c.patterns, folded, port); i >= 0 {
			v.Allowed, v.Rule, v.Reason = true, c.entries[i], "an entry of allowed_hosts matches"
			return v
		}
		if i := slices.IndexFunc(c.patterns, func(p hostname.Pattern) bool { return p.MatchHost(folded) }); i >= 0 {
			v.Rule = RulePort
			v.Reason = fmt.Sprintf("%q is in allowed_hosts, but not for port %d", c.entries[i], port)
			v.Advice = fmt.Sprintf("Add %q to allowed_hosts of the environment.", joinPort(folded, port))
			return v
		}
		v.Rule, v.Reason = RuleAllowedHosts, "no entry of allowed_hosts matches"
		entry := folded
		if !slices.Contains(hostname.DefaultPorts, port) {
			entry = joinPort(folded, port)
		}
		v.Advice = fmt.Sprintf("Add %q to allowed_hosts of the environment, or do without this host.", entry)
	default:
		v.Rule, v.Reason = RuleMalformed, "the networking type cannot be read"
		v.Advice = "Set the environment's networking type again."
	}
	return v
}

func joinPort(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

func list(ports []int) string {
	s := make([]string, len(ports))
	for i, p := range ports {
		s[i] = strconv.Itoa(p)
	}
	return strings.Join(s, ", ")
}
