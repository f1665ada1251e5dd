package forward

import (
	"io"
	"sync/atomic"
)

// countingBody counts what is read of a request's body.
type countingBody struct {
	body io.ReadCloser
	n    atomic.Int64 // the transport may still read when the answer is there
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.n.Add(int64(n))
	return n, err
}

func (b *countingBody) Close() error { return b.body.Close() }
