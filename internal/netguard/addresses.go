package netguard

import "net/netip"

// metadata are the addresses at which clouds hand out a host's own credentials. No setting opens them. Most lie
// in a private range anyhow; Azure's does not.
var metadata = addrs(
	"169.254.169.254", "fd00:ec2::254", // AWS, GCP, Azure, DigitalOcean, OpenStack
	"169.254.170.2", "169.254.170.23", "fd00:ec2::23", // AWS container and pod credentials
	"fd20:ce::254",    // GCP
	"100.100.100.200", // Alibaba
	"168.63.129.16",   // Azure's wire server
	"192.0.0.192",     // Oracle
)

// closed are the ranges that are not the public internet, with the word a refusal uses. The ranges that are
// reserved for documentation (192.0.2.0/24 and the like) are not in it: nothing answers there.
var closed = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"}, // reaches loopback on Linux
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"}, // holds :: too
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4-mapped"},
	{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "NAT64"},
	{netip.MustParsePrefix("2001::/32"), "Teredo"},
	{netip.MustParsePrefix("2002::/16"), "6to4"},
	{netip.MustParsePrefix("fc00::/7"), "unique local"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// kindMetadata is the word for addresses that no allowance opens.
const kindMetadata = "cloud metadata"

// kind names why an address is not public, "" when it is. An IPv4 address inside an IPv6 one is looked at too,
// so that no notation reaches the metadata services.
func kind(addr netip.Addr) string {
	if !addr.IsValid() {
		return "invalid"
	}
	for _, a := range append(embedded(addr), addr) {
		for _, m := range metadata {
			if a.WithZone("") == m {
				return kindMetadata
			}
		}
	}
	if addr.Zone() != "" {
		return "scoped"
	}
	for _, c := range closed {
		if c.prefix.Contains(addr) {
			return c.kind
		}
	}
	return ""
}

// embedded lists the IPv4 addresses that an IPv6 address carries in one of the transition notations.
func embedded(addr netip.Addr) []netip.Addr {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	inverted := netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}) // Teredo hides the client's address so
	return []netip.Addr{at(12), at(2), inverted}
}

func addrs(ss ...string) []netip.Addr {
	out := make([]netip.Addr, len(ss))
	for i, s := range ss {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}
