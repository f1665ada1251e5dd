package guest_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"managoat/sandbox/guest"
	"managoat/sandbox/guest/wire"
)

// hostile is a peer that says hello like a guest and answers everything else as the test wants.
func hostile(t *testing.T, version int, answer func(req wire.Request, stream *yamux.Stream)) (*guest.Client, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	session, err := wire.Serve(theirs)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { session.Close(); <-done })
	go func() {
		defer close(done)
		for {
			stream, err := session.AcceptStream()
			if err != nil {
				return
			}
			var req wire.Request
			if wire.ReadMessage(stream, &req) == nil {
				if req.Op == wire.OpHello {
					body, _ := json.Marshal(guest.Hello{Version: version})
					wire.WriteMessage(stream, wire.Answer{Body: body})
				} else if answer != nil {
					answer(req, stream)
				}
			}
			stream.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := guest.Dial(ctx, ours, guest.RoleServer)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestAnOlderGuestIsSpokenToAndOneTooOldIsRefused(t *testing.T) {
	t.Parallel()
	for version, ok := range map[int]bool{guest.Version + 1: true, guest.Version: true, guest.Version - 1: true, guest.Version - 2: false} {
		if _, err := hostile(t, version, nil); (err == nil) != ok {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

func TestWhatAMachineSaysIsDecodedUnderLimits(t *testing.T) {
	t.Parallel()
	ok := func(s *yamux.Stream) { wire.WriteMessage(s, wire.Answer{}) }
	for name, answer := range map[string]func(wire.Request, *yamux.Stream){
		"a frame that says it is huge": func(_ wire.Request, s *yamux.Stream) {
			ok(s)
			s.Write(append([]byte{wire.FrameOutput}, binary.BigEndian.AppendUint32(nil, 1<<31)...))
		},
		"a negative offset": func(_ wire.Request, s *yamux.Stream) {
			ok(s)
			wire.WriteFrame(s, wire.FrameOutput, wire.Output{Offset: -5}.Bytes(), []byte("x"))
		},
		"a frame of another kind": func(_ wire.Request, s *yamux.Stream) {
			ok(s)
			wire.WriteFrame(s, 'z', []byte("x"))
		},
		"an exit that is no JSON": func(_ wire.Request, s *yamux.Stream) {
			ok(s)
			wire.WriteFrame(s, wire.FrameExit, []byte("{"))
		},
		"an end without an exit": func(_ wire.Request, s *yamux.Stream) { ok(s) },
		"no answer":              func(wire.Request, *yamux.Stream) {},
		"a message that says it is huge": func(_ wire.Request, s *yamux.Stream) {
			s.Write(binary.BigEndian.AppendUint32(nil, 1<<31))
		},
	} {
		c, err := hostile(t, guest.Version, answer)
		if err != nil {
			t.Fatal(err)
		}
		exit, err := c.Follow(t.Context(), "x", guest.Offsets{}, func(guest.Chunk) error { return nil })
		if err == nil || exit != nil {
			t.Errorf("%s: %+v %v", name, exit, err)
		}
		if _, _, err := c.List(t.Context(), nil, "/", 10); err == nil {
			t.Errorf("%s: a listing came of it", name)
		}
	}
}

func TestAFileThatBreaksOffIsNeverShort(t *testing.T) {
	t.Parallel()
	c, err := hostile(t, guest.Version, func(_ wire.Request, s *yamux.Stream) {
		body, _ := json.Marshal(wire.Found{Size: 100})
		wire.WriteMessage(s, wire.Answer{Body: body})
		wire.WriteFrame(s, wire.FrameData, []byte("half"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if data, _, err := c.ReadFile(t.Context(), nil, "/f", 1000); !errors.Is(err, guest.ErrGone) {
		t.Errorf("read %q %v", data, err)
	}
}

func TestARefusalSaysWhatItIs(t *testing.T) {
	t.Parallel()
	c, err := hostile(t, guest.Version, func(req wire.Request, s *yamux.Stream) {
		e := &wire.Error{Code: guest.ErrOutside, Path: "/etc"}
		if req.Op == wire.OpStart {
			e = &wire.Error{Code: wire.CodeUnsupported, Message: "no root here"}
		}
		wire.WriteMessage(s, wire.Answer{Error: e})
	})
	if err != nil {
		t.Fatal(err)
	}
	var refused *guest.Refused
	if err := c.Start(t.Context(), guest.Exec{ID: "x"}); !errors.As(err, &refused) || refused.Code != "unsupported" || !strings.Contains(err.Error(), "no root here") {
		t.Errorf("start: %v", err)
	}
	var file *guest.FileError
	if _, err := c.Mkdir(t.Context(), nil, "/etc", 0); !errors.As(err, &file) || file.Code != guest.ErrOutside || file.Path != "/etc" {
		t.Errorf("mkdir: %v", err)
	}
}

func TestCallsEndWithTheirContextAndWithTheConnection(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	c, err := hostile(t, guest.Version, func(wire.Request, *yamux.Stream) { <-block })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(block) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Status(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call without an answer: %v", err)
	}
	go c.Close()
	if _, err := c.Status(t.Context(), "x"); !errors.Is(err, guest.ErrGone) {
		t.Errorf("a call on a connection that ends: %v", err)
	}
	<-c.Done()
}
