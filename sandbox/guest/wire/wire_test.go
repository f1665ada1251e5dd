package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

func TestWhatIsOverALimitOrBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	var v any
	begun := append(binary.BigEndian.AppendUint32(nil, MaxMessage), '{')
	if err := ReadMessage(bytes.NewReader(begun), &v); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a message that breaks off: %v", err)
	}
	if err := ReadMessage(bytes.NewReader(binary.BigEndian.AppendUint32(nil, MaxMessage+1)), &v); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("a message over the limit: %v", err)
	}
	if err := WriteMessage(io.Discard, strings.Repeat("x", MaxMessage)); err == nil {
		t.Error("a message over the limit was written")
	}
	over := append([]byte{FrameData}, binary.BigEndian.AppendUint32(nil, MaxFrame+1)...)
	if _, _, err := ReadFrame(bytes.NewReader(over)); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("a frame over the limit: %v", err)
	}
}

func FuzzMessagesAndFramesFromAMachine(f *testing.F) {
	var good bytes.Buffer
	WriteMessage(&good, Answer{Error: &Error{Code: "x"}})
	WriteFrame(&good, FrameOutput, Output{Stderr: true, Offset: 7, Dropped: 3, At: time.Unix(1, 2)}.Bytes(), []byte("data"))
	f.Add(good.Bytes())
	f.Add([]byte{0, 0, 0, 1, '{'})
	f.Add([]byte{'o', 0, 0, 0, 25, 1, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var a Answer
		if ReadMessage(r, &a) != nil {
			r.Reset(data)
		}
		for {
			kind, payload, err := ReadFrame(r)
			if err != nil {
				return
			}
			if kind == FrameOutput {
				if o, rest, err := ParseOutput(payload); err == nil && (o.Offset < 0 || o.Dropped < 0 || len(rest) > len(payload)) {
					t.Errorf("accepted %+v", o)
				}
			}
		}
	})
}

func TestOutputHeadsSurviveTheWire(t *testing.T) {
	t.Parallel()
	want := Output{Stderr: true, Offset: 1 << 40, Dropped: 12, At: time.Unix(1700000000, 123456789)}
	var b bytes.Buffer
	if err := WriteFrame(&b, FrameOutput, want.Bytes(), []byte("abc")); err != nil {
		t.Fatal(err)
	}
	kind, payload, err := ReadFrame(&b)
	if err != nil || kind != FrameOutput {
		t.Fatalf("%q %v", kind, err)
	}
	got, data, err := ParseOutput(payload)
	if err != nil || !got.At.Equal(want.At) || got.Offset != want.Offset || got.Dropped != want.Dropped || !got.Stderr || string(data) != "abc" {
		t.Errorf("got %+v %q %v", got, data, err)
	}
}

// pipes returns the two ends of a carried connection.
func pipes(t *testing.T) (a, b *Pipe) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	client, err := Dial(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	server, err := Serve(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	opened, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *yamux.Stream, 1)
	go func() {
		s, err := server.AcceptStream()
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	}()
	return NewPipe(opened), NewPipe(<-accepted)
}

func TestEitherDirectionEndsWhileTheOtherGoesOn(t *testing.T) {
	t.Parallel()
	a, b := pipes(t)
	if _, err := a.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing after the end: %v", err)
	}
	if got, err := io.ReadAll(b); err != nil || string(got) != "question" {
		t.Errorf("read %q %v", got, err)
	}
	big := bytes.Repeat([]byte("answer"), 1<<20) // more than any window
	written := make(chan error, 1)
	go func() {
		_, err := b.Write(big)
		if err == nil {
			err = b.CloseWrite()
		}
		written <- err
	}()
	if got, err := io.ReadAll(a); err != nil || !bytes.Equal(got, big) {
		t.Errorf("read %d bytes %v", len(got), err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

func TestAnEndIsReadWholeHoweverLateAndAfterTheOtherSideClosed(t *testing.T) {
	t.Parallel()
	a, b := pipes(t)
	want := bytes.Repeat([]byte("x"), 300<<10) // within the window
	if _, err := a.Write(want); err != nil {
		t.Fatal(err)
	}
	a.CloseWrite()
	b.CloseWrite()
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v", err)
	}
	a.Close()
	if got, err := io.ReadAll(b); err != nil || len(got) != len(want) {
		t.Errorf("read %d bytes of %d: %v", len(got), len(want), err)
	}
}

func TestAResetReachesAReaderAndAWriterWhoNeverReads(t *testing.T) {
	t.Parallel()
	a, b := pipes(t)
	a.Write([]byte("begun"))
	a.Close()
	if got, err := io.ReadAll(b); !errors.Is(err, syscall.ECONNRESET) || string(got) != "begun" {
		t.Errorf("a reader: %q %v", got, err)
	}
	c, d := pipes(t)
	failed := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = d.Write(make([]byte, 10000))
		}
		failed <- err
	}()
	io.ReadFull(c, make([]byte, 50000))
	c.Close()
	select {
	case err := <-failed:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a writer: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a writer is blocked for good")
	}
}

func TestDeadlinesAreTheCallersAndCanBeTakenBack(t *testing.T) {
	t.Parallel()
	a, b := pipes(t)
	a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	var timeout net.Error
	if _, err := a.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read: %v", err)
	}
	a.SetReadDeadline(time.Time{})
	b.Write([]byte("y"))
	if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("read after the deadline was taken back: %d %v", n, err)
	}
	a.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := a.Write(make([]byte, 4<<20)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("write: %v", err)
	}
}

func TestJoinPassesBothDirectionsAndTheirEnds(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, b := pipes(t)
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		Join(conn.(*net.TCPConn), a)
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	big := bytes.Repeat([]byte("0123456789"), 200_000)
	go func() {
		conn.Write(big)
		conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d of %d bytes came: %v", len(got), len(big), err)
	}
	b.Write([]byte("thanks"))
	b.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "thanks" {
		t.Errorf("read %q %v", got, err)
	}
	<-joined
}

// calls counts the writes of a connection that cannot take several buffers in one.
type calls struct {
	net.Conn
	n atomic.Int64
}

func (c *calls) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

func TestAFrameIsOneWriteOnAnyConnection(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	counted := &calls{Conn: here}
	near, err := Dial(counted)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := Serve(there)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	out, err := near.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	in, err := far.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, maxCopied, maxCopied + 1} {
		before := counted.n.Load()
		sent := bytes.Repeat([]byte{byte(size)}, size)
		if _, err := out.Write(sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came as others: %v", size, err)
		}
		if n := counted.n.Load() - before; size <= maxCopied && n != 1 {
			t.Errorf("a frame of %d bytes took %d writes", size, n)
		}
	}
}
