package forward

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// hello is what Go's client sends first.
func hello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tls.Client(theirs, config).HandshakeContext(t.Context())
		theirs.Close()
	}()
	b := make([]byte, maxHello)
	n, err := ours.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	ours.Close()
	<-done
	return b[:n]
}

func peek(b []byte) (string, bool, error) {
	return peekServerName(bufio.NewReaderSize(bytes.NewReader(b), maxHello), func() {})
}

func TestTheServerNameIsReadAndNothingTaken(t *testing.T) {
	t.Parallel()
	for _, config := range []*tls.Config{
		{ServerName: "a.example", NextProtos: []string{"h2", "http/1.1"}},
		{ServerName: "a.example", MaxVersion: tls.VersionTLS12},
		{ServerName: "192.0.2.1"}, // an address is no server name
		{InsecureSkipVerify: true},
	} {
		b := hello(t, config)
		want := config.ServerName
		if net.ParseIP(want) != nil {
			want = ""
		}
		r := bufio.NewReaderSize(bytes.NewReader(append(b, "after"...)), maxHello)
		begun := false
		name, isTLS, err := peekServerName(r, func() { begun = true })
		if name != want || !isTLS || err != nil || !begun {
			t.Errorf("%q: %q %v %v", config.ServerName, name, isTLS, err)
		}
		if rest, err := io.ReadAll(r); err != nil || !bytes.Equal(rest, append(b, "after"...)) {
			t.Errorf("%q: the bytes are not all there", config.ServerName)
		}
	}
}

func TestWhatIsNoTLSPasses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "PRI * HTTP/2.0\r\n\r\n", "\x00", "\x15\x03\x03"} {
		if name, isTLS, err := peek([]byte(text)); name != "" || isTLS || err != nil {
			t.Errorf("%q: %q %v %v", text, name, isTLS, err)
		}
	}
	if _, isTLS, err := peek(nil); isTLS || !errors.Is(err, io.EOF) {
		t.Errorf("nothing: %v %v", isTLS, err)
	}
}

func TestAHelloThatCannotBeReadDoesNotPass(t *testing.T) {
	t.Parallel()
	good := hello(t, &tls.Config{ServerName: "a.example"})
	cut := good[:len(good)-1]
	noVersion := bytes.Clone(good)
	noVersion[1] = 2
	otherMessage := bytes.Clone(good)
	otherMessage[5] = 2
	longer := bytes.Clone(good)
	longer[8]++ // the message claims a byte more than there is
	emptyRecord := append([]byte{22, 3, 1, 0, 0}, good...)
	// A second server name: one reader may take the first, another the second.
	twice := withExtension(good, "\x00\x00\x00\x0e\x00\x0c\x00\x00\x09b.example")
	endless := append([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{0}, 2*maxHello)...)
	for name, b := range map[string][]byte{"cut": cut, "version": noVersion, "message": otherMessage, "length": longer,
		"empty record": emptyRecord, "two names": twice, "endless": endless} {
		if got, isTLS, err := peek(b); !isTLS || !errors.Is(err, errHello) {
			t.Errorf("%s: %q %v %v", name, got, isTLS, err)
		}
	}
}

// withExtension adds an extension at the end of a ClientHello in one record.
func withExtension(b []byte, extension string) []byte {
	n := len(extension)
	add := func(at int) {
		v := int(b[at])<<8 | int(b[at+1])
		b[at], b[at+1] = byte((v+n)>>8), byte(v+n)
	}
	b = append(bytes.Clone(b), extension...)
	add(3) // record
	add(7) // message, its lower bytes
	p := 9 + 2 + 32
	p += 1 + int(b[p])                  // session
	p += 2 + int(b[p])<<8 + int(b[p+1]) // suites
	p += 1 + int(b[p])                  // compressions
	add(p)
	return b
}

// errSeen ends the handshake of the standard library's server when it has read the hello.
var errSeen = errors.New("seen")

// standardName is the name that the standard library's server reads; ok is false when it refuses the message.
func standardName(b []byte) (name string, ok bool) {
	c := tls.Server(replay{bytes.NewReader(b)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, errSeen
	}})
	c.Handshake() // fails by design
	return name, ok
}

type replay struct{ r io.Reader }

func (c replay) Read(p []byte) (int, error)         { return c.r.Read(p) }
func (c replay) Write(p []byte) (int, error)        { return len(p), nil }
func (c replay) Close() error                       { return nil }
func (c replay) LocalAddr() net.Addr                { return nil }
func (c replay) RemoteAddr() net.Addr               { return nil }
func (c replay) SetDeadline(time.Time) error        { return nil }
func (c replay) SetReadDeadline(time.Time) error    { return nil }
func (c replay) SetWriteDeadline(t time.Time) error { return nil }

// Whatever a client sends, a server that accepts it must not read another name than we did.
func FuzzServerName(f *testing.F) {
	for _, name := range []string{"a.example", "", "xn--bcher-kva.example"} {
		f.Add(hello(f, &tls.Config{ServerName: name, InsecureSkipVerify: true}))
	}
	f.Add([]byte("GET / HTTP/1.1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, isTLS, err := peek(b)
		theirs, ok := standardName(b)
		if !ok || len(b) > maxHello {
			return
		}
		if err != nil {
			return // stricter is fine
		}
		// The standard library drops the dot that ends a name.
		if !isTLS || strings.TrimSuffix(name, ".") != theirs {
			t.Fatalf("read %q (TLS %v), the server reads %q", name, isTLS, theirs)
		}
	})
}
