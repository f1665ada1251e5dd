package wire

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

// Dial begins a session on a connection that this side opened; Serve on one that it accepted.
func Dial(conn net.Conn) (*yamux.Session, error)  { return yamux.Client(&joined{Conn: conn}, config()) }
func Serve(conn net.Conn) (*yamux.Session, error) { return yamux.Server(&joined{Conn: conn}, config()) }

// config is the multiplexer's configuration, the same on both sides.
func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = backlog
	c.MaxStreamWindowSize = window
	c.ConnectionWriteTimeout = 30 * time.Second // a machine that is short of CPU is slow, not gone
	c.StreamCloseTimeout = 0                    // a reader may be slow; whoever opened a stream closes it, and a session's end ends all
	c.LogOutput = io.Discard
	return c
}

// A frame of the multiplexer: its header's length, and where the kind and the length of its body are in it.
const (
	muxHeader = 12
	muxKind   = 1
	muxLength = 8
	muxData   = 0 // the kind that has a body
)

// joined writes the header and the body of a frame, which the multiplexer writes one after the other, at once:
// a header alone would wake the other side, and everything between, for nothing. It is for one writer.
type joined struct {
	net.Conn
	frame []byte // a header that waits for its body
}

// maxCopied is the largest body that is copied behind its header. What is larger is worth a call of its own where the
// connection cannot take both in one.
const maxCopied = 16 << 10

func (j *joined) Write(b []byte) (int, error) {
	if len(j.frame) == 0 {
		if len(b) == muxHeader && b[muxKind] == muxData && binary.BigEndian.Uint32(b[muxLength:]) > 0 {
			j.frame = append(j.frame, b...)
			return len(b), nil
		}
		return j.Conn.Write(b)
	}
	defer func() { j.frame = j.frame[:0] }()
	var n int64
	var err error
	if len(b) <= maxCopied {
		var once int
		j.frame = append(j.frame, b...)
		once, err = j.Conn.Write(j.frame)
		n = int64(once)
	} else {
		parts := net.Buffers{j.frame, b}
		n, err = parts.WriteTo(j.Conn)
	}
	return max(int(n)-muxHeader, 0), err
}
