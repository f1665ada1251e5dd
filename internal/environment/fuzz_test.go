package environment

import (
	"path"
	"strings"
	"testing"
)

// Whatever passes as a mount path is an absolute path in its shortest form that lies in no folder of the system.
func FuzzAMountPathThatPassesLeadsNowhereElse(f *testing.F) {
	for _, s := range []string{"/home/sprite/app", "/home/sprite/../../etc", "//etc", "/etc", "/./etc/x", "/home/sprite/.managoat/c", "", "~", "/a\x00b", "/usr\n/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if mountPath(p) != "" {
			return
		}
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00\n\r\x1b") {
			t.Errorf("%q passed", p)
		}
		for _, tree := range reservedTrees {
			if p == tree || strings.HasPrefix(p, tree+"/") {
				t.Errorf("%q passed and lies in %s", p, tree)
			}
		}
	})
}

// Whatever passes as an address is https, names a host, and holds no user, password, query or fragment.
func FuzzARepositoryURLThatPassesHoldsNoSecret(f *testing.F) {
	for _, s := range []string{"https://github.com/a/b", "https://u:p@x/a", "https://x/a?t=1", "https://x/a#b", "http://x/a", "https://[::1]:8443/a", "https://x\\@y/a", "ext::sh", "https:x/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if repositoryURL(s) != "" {
			return
		}
		rest, ok := strings.CutPrefix(strings.ToLower(s), "https://")
		host, _, _ := strings.Cut(rest, "/")
		if !ok || host == "" || strings.ContainsAny(host, "@\\ \t\r\n?#") || strings.ContainsAny(s, "?#\x00\r\n") {
			t.Errorf("%q passed", s)
		}
	})
}
