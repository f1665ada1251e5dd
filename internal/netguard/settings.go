package netguard

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"managoat/internal/netguard/hostname"
)

// Purpose of a connection. An allowance is for one purpose: what a webhook may reach, a machine may not.
type Purpose string

// Purposes.
const (
	Model   Purpose = "model"   // base URLs of models
	Git     Purpose = "git"     // repositories the server itself reads
	MCP     Purpose = "mcp"     // MCP servers the server itself calls
	Webhook Purpose = "webhook" // webhook receivers
	Machine Purpose = "machine" // whatever a machine connects to, clones included
	Peer    Purpose = "peer"    // another server of the instance; its address is allowed by the one that calls it, never by a setting
)

var purposes = []Purpose{Model, Git, MCP, Webhook, Machine}

// Allowance opens one private host for one purpose.
type Allowance struct {
	Purpose Purpose `json:"purpose"`
	Host    string  `json:"host"` // folded by hostname.Fold
	Port    int     `json:"port"` // 0: any
}

// ParseAllowances reads MANAGOAT_ALLOW_PRIVATE: `purpose=host:port`, separated by commas; the port may be `*`.
// Its error names the bad entry.
func ParseAllowances(s string) ([]Allowance, error) {
	var out []Allowance
	for _, entry := range entries(s) {
		a, err := parseAllowance(entry)
		if err != nil {
			return nil, fmt.Errorf("allowance %q: %w", entry, err)
		}
		out = append(out, a)
	}
	return out, nil
}

func parseAllowance(entry string) (Allowance, error) {
	purpose, target, ok := strings.Cut(entry, "=")
	if !ok {
		return Allowance{}, errors.New("write purpose=host:port")
	}
	a := Allowance{Purpose: Purpose(strings.TrimSpace(purpose))}
	if !slices.Contains(purposes, a.Purpose) {
		return Allowance{}, fmt.Errorf("unknown purpose %q, use one of %q", a.Purpose, purposes)
	}
	target = strings.TrimSpace(target)
	if strings.ContainsAny(target, "/") {
		return Allowance{}, errors.New("one host is allowed at a time, never a network or a URL")
	}
	var err error
	if host, any := strings.CutSuffix(target, ":*"); any {
		a.Host, err = hostname.Fold(host)
	} else {
		a.Host, a.Port, err = hostname.SplitPort(target)
	}
	return a, err
}

// Allows tells whether one of the allowances names this host and port for this purpose.
func Allows(allowances []Allowance, purpose Purpose, host string, port int) bool {
	folded, err := hostname.Fold(host)
	return err == nil && slices.ContainsFunc(allowances, func(a Allowance) bool {
		return a.Purpose == purpose && a.Host == folded && (a.Port == 0 || a.Port == port)
	})
}

// ParseResolve reads MANAGOAT_RESOLVE: `name=address`, separated by commas; a name that comes twice has both
// addresses. Its error names the bad entry.
func ParseResolve(s string) (map[string][]netip.Addr, error) {
	out := map[string][]netip.Addr{}
	for _, entry := range entries(s) {
		name, address, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, fmt.Errorf("resolve %q: write name=address", entry)
		}
		host, err := hostname.Fold(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("resolve %q: %w", entry, err)
		}
		if _, err := netip.ParseAddr(host); err == nil {
			return nil, fmt.Errorf("resolve %q: %s is an address already", entry, host)
		}
		addr, err := netip.ParseAddr(strings.Trim(strings.TrimSpace(address), "[]"))
		if err != nil {
			return nil, fmt.Errorf("resolve %q: %q is not an address", entry, address)
		}
		out[host] = append(out[host], addr)
	}
	return out, nil
}

// ParsePorts reads a list of ports, separated by commas. Its error names the bad entry.
func ParsePorts(s string) ([]int, error) {
	var out []int
	for _, entry := range entries(s) {
		port, err := hostname.Port(entry)
		if err != nil {
			return nil, fmt.Errorf("port %q: use a number from 1 to 65535", entry)
		}
		out = append(out, port)
	}
	return out, nil
}

// ReadCA reads MANAGOAT_EXTRA_CA: the path of a PEM file, or the PEM text itself. "" is no certificate.
func ReadCA(setting string) ([]byte, error) {
	setting = strings.TrimSpace(setting)
	if setting == "" {
		return nil, nil
	}
	text, name := []byte(setting), "extra CA"
	if !strings.HasPrefix(setting, "-----BEGIN") {
		var err error
		if text, err = os.ReadFile(setting); err != nil {
			return nil, fmt.Errorf("extra CA: %w", err)
		}
		name = "extra CA " + setting
	}
	n := 0
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s: holds a %s, only certificates belong there", name, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", name, n+1, err)
		}
		n++
	}
	if n == 0 {
		return nil, fmt.Errorf("%s: holds no PEM certificate", name)
	}
	return text, nil
}

func entries(s string) []string {
	var out []string
	for entry := range strings.SplitSeq(s, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			out = append(out, entry)
		}
	}
	return out
}
