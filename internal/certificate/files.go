package certificate

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// lookEvery is how often the files are looked at, at most: at a handshake, so that nothing runs when nobody comes.
const lookEvery = time.Second

// files serve a certificate that others renew.
type files struct {
	o Options

	mu      sync.Mutex
	current *tls.Certificate
	seen    state // of the files when they were last read
	looked  time.Time
}

// state tells when a file was written or put in place of another.
type state [2]os.FileInfo

func openFiles(o Options) (*files, error) {
	f := &files{o: o, looked: time.Now()}
	var err error
	if f.seen, err = f.look(); err == nil {
		f.current, err = f.read()
	}
	return f, err
}

// get is the certificate, read again when the files are others than they were. One that cannot be served leaves the one
// before in place: renewing writes two files, and between the two they do not belong together.
func (f *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.looked) < lookEvery {
		return f.current, nil
	}
	f.looked = now
	seen, err := f.look()
	if err == nil && same(seen, f.seen) {
		return f.current, nil
	}
	again := err != nil && f.seen == state{}
	f.seen = seen
	var c *tls.Certificate
	if err == nil {
		c, err = f.read()
	}
	switch {
	case err == nil:
		f.current = c
		f.o.Log.Info("the certificate was read again", "file", f.o.Cert, "until", c.Leaf.NotAfter)
	case !again: // said once
		f.o.Log.Error("the new certificate cannot be served; the one before stays", "until", f.current.Leaf.NotAfter, "err", err)
	}
	return f.current, nil
}

func (f *files) look() (s state, err error) {
	for i, path := range []string{f.o.Cert, f.o.Key} {
		if s[i], err = os.Stat(path); err != nil {
			return state{}, err
		}
	}
	return s, nil
}

func same(a, b state) bool {
	for i := range a {
		if b[i] == nil || !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}

// read reads the two files and makes sure that browsers would take what is in them.
func (f *files) read() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(f.o.Cert, f.o.Key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", f.o.Cert, f.o.Key, err)
	}
	if err := covers(c.Leaf, f.o.Host, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.o.Cert, err)
	}
	return &c, nil
}
