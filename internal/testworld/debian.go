package testworld

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const debianSuite = "stable"

// Debian is an unsigned Debian repository over plain HTTP, as apt reaches one through a proxy.
type Debian struct {
	*service
	report Reporter
	root   string // what is served
	arch   string

	mu       sync.Mutex
	packages bytes.Buffer // the index of everything added
}

// DebianPackage is a package to build. Blank fields have working values.
type DebianPackage struct {
	Name     string
	Version  string // 1.0
	Depends  string
	Files    Files  // by path from the root
	Postinst string // the script that runs when it is installed
}

// HelloPackage installs a program, managoat-hello, that greets.
var HelloPackage = DebianPackage{
	Name:  "managoat-hello",
	Files: Files{"usr/bin/managoat-hello": "#!/bin/sh\necho \"hello from a Debian package\"\n"},
}

// BrokenPackage is one whose installation fails, with exit code 7 of its postinst.
var BrokenPackage = DebianPackage{
	Name:     "managoat-broken",
	Postinst: "#!/bin/sh\necho \"managoat-broken: this package cannot be configured\" >&2\nexit 7\n",
}

func (w *World) openDebian() error {
	root, err := w.subdir("debian")
	if err != nil {
		return err
	}
	arch, err := exec.Command("dpkg", "--print-architecture").Output()
	if err != nil {
		return fmt.Errorf("dpkg --print-architecture: %w", err)
	}
	service, listener, err := w.listen(DebianName, false)
	if err != nil {
		return err
	}
	d := &Debian{service: service, report: w.report, root: root, arch: strings.TrimSpace(string(arch))}
	w.Debian = d
	if err := d.index(); err != nil {
		return err
	}
	d.Add(HelloPackage)
	d.Add(BrokenPackage)
	files := http.FileServer(http.Dir(root))
	w.serve(listener, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		d.record(r)
		files.ServeHTTP(rw, r)
	}))
	return nil
}

// Sources is the line of apt's sources for this repository, the value of MANAGOAT_APT_SOURCES.
func (d *Debian) Sources() string { return "deb [trusted=yes] " + d.URL + " " + debianSuite + " main" }

// Add builds a package and puts it in the index.
func (d *Debian) Add(p DebianPackage) {
	d.report.Helper()
	if err := d.add(p); err != nil {
		d.report.Fatalf("Debian package %s: %v", p.Name, err)
	}
}

func (d *Debian) add(p DebianPackage) error {
	if p.Version == "" {
		p.Version = "1.0"
	}
	tree, err := os.MkdirTemp(d.root, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := os.Chmod(tree, 0o755); err != nil { // the package's root directory
		return err
	}
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: Test World <world@%s>\n", p.Name, p.Version, DebianName)
	if p.Depends != "" {
		control += "Depends: " + p.Depends + "\n"
	}
	control += "Description: a package of the tests\n"
	files := Files{"DEBIAN/control": control}
	if p.Postinst != "" {
		files["DEBIAN/postinst"] = p.Postinst
	}
	for name, content := range p.Files {
		files[name] = content
	}
	if err := files.write(tree); err != nil {
		return err
	}
	name := filepath.Join("pool", p.Name+"_"+p.Version+"_all.deb")
	path := filepath.Join(d.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, path).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w\n%s", err, out)
	}
	deb, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(&d.packages, "%sFilename: %s\nSize: %d\nSHA256: %x\n\n", control, name, len(deb), sha256.Sum256(deb))
	return d.index()
}

// index writes Packages and Release anew.
func (d *Debian) index() error {
	dists := filepath.Join(d.root, "dists", debianSuite)
	index := filepath.Join("main", "binary-"+d.arch, "Packages")
	packages := d.packages.Bytes()
	release := fmt.Sprintf("Origin: Test World\nSuite: %[1]s\nCodename: %[1]s\nArchitectures: %[2]s all\nComponents: main\nDate: %[3]s\nSHA256:\n %[4]x %[5]d %[6]s\n",
		debianSuite, d.arch, time.Now().UTC().Format(time.RFC1123), sha256.Sum256(packages), len(packages), index)
	return Files{index: string(packages), "Release": release}.write(dists)
}
