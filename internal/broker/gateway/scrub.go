package gateway

import (
	"bytes"
	"strings"

	"managoat/internal/secret"
)

// scrubber takes a key out of what streams by. The mask is as long as the key, so lengths told ahead stay true. What
// could be the beginning of the key is held until the next bytes decide; nothing else ever waits.
type scrubber struct {
	key, mask []byte
	held      []byte
	out       []byte
}

func newScrubber(key string) *scrubber {
	mask := []byte(strings.Repeat("*", len(key)))
	copy(mask, secret.Mask)
	return &scrubber{key: []byte(key), mask: mask}
}

// next returns what may go on of what was held and p. It is valid until the next call.
func (s *scrubber) next(p []byte) []byte {
	if len(s.key) == 0 {
		return p
	}
	s.out = append(append(s.out[:0], s.held...), p...)
	s.replace()
	hold := s.overlap()
	s.held = append(s.held[:0], s.out[len(s.out)-hold:]...)
	return s.out[:len(s.out)-hold]
}

// end returns what is still held.
func (s *scrubber) end() []byte { return s.held }

func (s *scrubber) replace() {
	rest := s.out
	for {
		i := bytes.Index(rest, s.key)
		if i < 0 {
			return
		}
		copy(rest[i:], s.mask)
		rest = rest[i+len(s.key):]
	}
}

// overlap is the length of the longest end of out that is a beginning of the key.
func (s *scrubber) overlap() int {
	for n := min(len(s.key)-1, len(s.out)); n > 0; n-- {
		if bytes.HasSuffix(s.out, s.key[:n]) {
			return n
		}
	}
	return 0
}

// text scrubs a value that is there as a whole.
func (s *scrubber) text(v string) string {
	if len(s.key) == 0 {
		return v
	}
	return strings.ReplaceAll(v, string(s.key), string(s.mask))
}
