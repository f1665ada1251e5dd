package testworld

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
)

// NPM is an npm registry over HTTPS.
type NPM struct {
	*service
	report Reporter

	mu       sync.Mutex
	packages map[string]*published // by name
	tarballs map[string][]byte     // by path
}

type published struct {
	latest   string
	versions map[string]packument
}

// NPMPackage is a package to publish. Blank fields have working values.
type NPMPackage struct {
	Name    string
	Version string            // 1.0.0
	Bin     map[string]string // command → file
	Scripts map[string]string // lifecycle scripts
	Files   Files
}

// GreetPackage installs a command, managoat-greet, that greets.
var GreetPackage = NPMPackage{
	Name:  "managoat-greet",
	Bin:   map[string]string{"managoat-greet": "greet.js"},
	Files: Files{"greet.js": "#!/usr/bin/env node\nconsole.log('hello from an npm package');\n"},
}

// packument is what a registry says of one version.
type packument struct {
	Name    string            `json:"name"`
	Version string            `json:"version"`
	Bin     map[string]string `json:"bin,omitempty"`
	Scripts map[string]string `json:"scripts,omitempty"`
	Install bool              `json:"hasInstallScript,omitempty"`
	Dist    *distribution     `json:"dist,omitempty"`
}

type distribution struct {
	Tarball   string `json:"tarball"`
	Integrity string `json:"integrity"`
	Shasum    string `json:"shasum"`
}

func (w *World) openNPM() error {
	service, listener, err := w.listen(NPMName, true)
	if err != nil {
		return err
	}
	w.NPM = &NPM{
		service:  service,
		report:   w.report,
		packages: map[string]*published{},
		tarballs: map[string][]byte{},
	}
	w.NPM.Add(GreetPackage)
	w.serve(listener, w.NPM)
	return nil
}

// Add publishes a package; the newest added version is "latest".
func (n *NPM) Add(p NPMPackage) {
	n.report.Helper()
	if err := n.add(p); err != nil {
		n.report.Fatalf("npm package %s: %v", p.Name, err)
	}
}

func (n *NPM) add(p NPMPackage) error {
	if p.Version == "" {
		p.Version = "1.0.0"
	}
	version := packument{Name: p.Name, Version: p.Version, Bin: p.Bin, Scripts: p.Scripts, Install: p.Scripts["install"] != "" || p.Scripts["postinstall"] != ""}
	manifest, err := json.Marshal(version)
	if err != nil {
		return err
	}
	files := Files{"package.json": string(manifest)}
	maps.Copy(files, p.Files)
	tarball, err := files.tarball("package")
	if err != nil {
		return err
	}
	file := "/" + p.Name + "/-/" + path.Base(p.Name) + "-" + p.Version + ".tgz"
	sha512sum, sha1sum := sha512.Sum512(tarball), sha1.Sum(tarball)
	version.Dist = &distribution{
		Tarball:   n.URL + file,
		Integrity: "sha512-" + base64.StdEncoding.EncodeToString(sha512sum[:]),
		Shasum:    hex.EncodeToString(sha1sum[:]),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tarballs[file] = tarball
	if n.packages[p.Name] == nil {
		n.packages[p.Name] = &published{versions: map[string]packument{}}
	}
	n.packages[p.Name].versions[p.Version] = version
	n.packages[p.Name].latest = p.Version
	return nil
}

// ServeHTTP answers for packuments and tarballs; anything else is 404, as for a package that is not there.
func (n *NPM) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	n.record(r)
	n.mu.Lock()
	defer n.mu.Unlock()
	if tarball, ok := n.tarballs[r.URL.Path]; ok {
		rw.Header().Set("Content-Type", "application/octet-stream")
		rw.Write(tarball)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	p, ok := n.packages[name]
	if !ok {
		writeJSON(rw, http.StatusNotFound, map[string]string{"error": "Not found"})
		return
	}
	writeJSON(rw, http.StatusOK, map[string]any{
		"name":      name,
		"dist-tags": map[string]string{"latest": p.latest},
		"versions":  p.versions,
	})
}

// tarball packs the files under a directory.
func (files Files) tarball(dir string) ([]byte, error) {
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	pack := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		header := &tar.Header{Name: dir + "/" + name, Mode: int64(mode(content)), Size: int64(len(content)), Format: tar.FormatUSTAR}
		if err := pack.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := pack.Write([]byte(content)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := pack.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeJSON(rw http.ResponseWriter, status int, body any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	json.NewEncoder(rw).Encode(body) // a client that is gone has nobody to tell
}
