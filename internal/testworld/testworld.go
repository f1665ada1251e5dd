// Package testworld is the outside world of a test of the whole product, on loopback: a git host over HTTPS, a
// Debian repository, an npm registry and a scripted model, under names of a private zone with certificates of a
// private authority. Each service is the real protocol (git's own http-backend, packages built by dpkg-deb), so
// that the product's real clients talk to it; nothing here knows the product beyond the names of its settings.
//
// Only tests and internal/testworld/cmd/demo-world import it.
package testworld

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The names under which the services are found. They resolve nowhere but through World.Resolve.
const (
	GitName    = "git.test"
	DebianName = "deb.test"
	NPMName    = "npm.test"
	ModelName  = "model.test"
)

const (
	loopback      = "127.0.0.1"
	maxBody       = 32 << 20         // bytes of one request that are read and kept
	headerTimeout = 60 * time.Second // for a client that connects and says nothing
)

// Files are a tree of text files by slash-separated path. A file that starts with "#!" is executable.
type Files map[string]string

// Reporter is told of what goes wrong in the world. testing.TB is one.
type Reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// World is one set of services. Its methods are safe for concurrent use unless they say otherwise.
type World struct {
	CA     *Authority
	Git    *Git
	Debian *Debian
	NPM    *NPM
	Model  *Model

	report  Reporter
	dir     string
	mu      sync.Mutex
	closers []func() error
}

// New starts a world that ends with the test.
func New(tb testing.TB) *World {
	tb.Helper()
	w := Open(tb, tb.TempDir())
	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Errorf("closing the test world: %v", err)
		}
	})
	return w
}

// Open starts a world that keeps its files in dir, for programs that are no test. The caller closes it.
func Open(report Reporter, dir string) *World {
	report.Helper()
	w := &World{report: report, dir: dir}
	start := func(name string, open func() error) {
		report.Helper()
		if err := open(); err != nil {
			report.Fatalf("test world: %s: %v", name, errors.Join(err, w.Close()))
		}
	}
	start("certificate authority", w.openAuthority)
	start("git", w.openGit)
	start("Debian repository", w.openDebian)
	start("npm registry", w.openNPM)
	start("model", w.openModel)
	return w
}

// Close ends every service, and returns when the last request has ended. It keeps the files.
func (w *World) Close() error {
	w.mu.Lock()
	closers := w.closers
	w.closers = nil
	w.mu.Unlock()
	var errs []error
	for _, closer := range slices.Backward(closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// Resolve is the value of MANAGOAT_RESOLVE.
func (w *World) Resolve() string {
	var entries []string
	for _, name := range []string{GitName, DebianName, NPMName, ModelName} {
		entries = append(entries, name+"="+loopback)
	}
	return strings.Join(entries, ",")
}

// AllowPrivate is the value of MANAGOAT_ALLOW_PRIVATE: machines may reach the repositories and registries, the
// model gateway may reach the model, and nothing else here is open to either.
func (w *World) AllowPrivate() string {
	return strings.Join([]string{
		"machine=" + w.Git.Host, "git=" + w.Git.Host,
		"machine=" + w.Debian.Host,
		"machine=" + w.NPM.Host,
		"model=" + w.Model.Host,
	}, ",")
}

// Environ is the environment, as NAME=value, of a server that lives in this world.
func (w *World) Environ() []string {
	return []string{
		"MANAGOAT_RESOLVE=" + w.Resolve(),
		"MANAGOAT_ALLOW_PRIVATE=" + w.AllowPrivate(),
		"MANAGOAT_EXTRA_CA=" + w.CA.File,
		"MANAGOAT_APT_SOURCES=" + w.Debian.Sources(),
		"MANAGOAT_NPM_REGISTRY=" + w.NPM.URL,
	}
}

// Request is what a service was asked.
type Request struct {
	At     time.Time
	Method string
	Path   string // with the query
	Header http.Header
	Body   []byte // kept by the model alone
}

// Key is the credential of the request in whichever header model clients use; "" is none.
func (r Request) Key() string {
	for _, header := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key := r.Header.Get(header); key != "" {
			return key
		}
	}
	_, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return key
}

// service is a listening server under a name of the world.
type service struct {
	Name string
	Host string // name:port
	URL  string // without a slash at the end

	mu       sync.Mutex
	requests []*Request
}

// Requests are all requests so far, in order of arrival.
func (s *service) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, len(s.requests))
	for i, r := range s.requests {
		out[i] = *r
	}
	return out
}

func (s *service) record(r *http.Request) *Request {
	kept := &Request{At: time.Now(), Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, kept)
	return kept
}

// listen binds a loopback port for a name; https tells the scheme of the URL.
func (w *World) listen(name string, https bool) (*service, net.Listener, error) {
	listener, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return nil, nil, err
	}
	scheme := "http"
	if https {
		certificate, err := w.CA.Issue(name)
		if err != nil {
			return nil, nil, errors.Join(err, listener.Close())
		}
		scheme = "https"
		listener = tls.NewListener(listener, &tls.Config{
			Certificates: []tls.Certificate{certificate},
			NextProtos:   []string{"h2", "http/1.1"},
		})
	}
	host := net.JoinHostPort(name, fmt.Sprint(listener.Addr().(*net.TCPAddr).Port))
	return &service{Name: name, Host: host, URL: scheme + "://" + host}, listener, nil
}

// serve answers on the listener until the world closes, which waits for the requests that run.
func (w *World) serve(listener net.Listener, handler http.Handler) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	server := &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
			handler.ServeHTTP(rw, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // a client that refuses our certificate is the client's to report
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	w.onClose(func() error {
		cancel()
		closed := server.Close()
		err := <-served
		running.Wait()
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		return errors.Join(closed, err)
	})
}

func (w *World) onClose(closer func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, closer)
}

// subdir makes a directory of the world's own.
func (w *World) subdir(name string) (string, error) {
	dir := filepath.Join(w.dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}

// write lays the files out under dir.
func (files Files) write(dir string) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), mode(content)); err != nil {
			return err
		}
	}
	return nil
}

func mode(content string) os.FileMode {
	if strings.HasPrefix(content, "#!") {
		return 0o755
	}
	return 0o644
}
