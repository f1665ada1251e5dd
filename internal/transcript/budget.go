package transcript

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Budget keeps the head and the tail of an output and counts what lies between. It takes at most twice the memory of
// what it keeps, however much comes.
type Budget struct {
	keep    int // of each end, in bytes
	head    strings.Builder
	full    bool // nothing more goes to the head, even where a character would still fit
	tail    []byte
	total   int64
	dropped int64
}

// NewBudget keeps limit bytes: half of them from the start, half from the end.
func NewBudget(limit int) *Budget { return &Budget{keep: limit / 2} }

// Write takes text and returns the part of it that is still within the head: what may be shown live.
func (b *Budget) Write(s string) (live string) {
	b.total += int64(len(s))
	if !b.full {
		cut := runeCut(s, b.keep-b.head.Len())
		live, s = s[:cut], s[cut:]
		b.head.WriteString(live)
		b.full = s != ""
	}
	// What one write brings beyond the tail never enters it.
	if over := len(s) - b.keep; over > 0 {
		over = runeStart(s, over)
		b.dropped += int64(len(b.tail) + over)
		b.tail, s = b.tail[:0], s[over:]
	}
	b.tail = append(b.tail, s...)
	if len(b.tail) > 2*b.keep { // in steps, not at every byte
		b.cut()
	}
	return live
}

func (b *Budget) cut() {
	if over := len(b.tail) - b.keep; over > 0 {
		over = runeStart(b.tail, over)
		b.dropped += int64(over)
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
}

// Output is the head, and the tail behind a line that counts what is missing. truncated tells whether anything is.
func (b *Budget) Output() (text string, truncated bool) {
	b.cut()
	if b.dropped == 0 {
		return b.head.String() + string(b.tail), false
	}
	return b.head.String() + fmt.Sprintf("\n… %d bytes are not shown here …\n", b.dropped) + string(b.tail), true
}

// Total is how many bytes came.
func (b *Budget) Total() int64 { return b.total }

// runeCut is the last place up to room where s can be cut without cutting a character.
func runeCut(s string, room int) int {
	if len(s) <= room {
		return len(s)
	}
	for room = max(room, 0); room > 0 && !utf8.RuneStart(s[room]); {
		room--
	}
	return room
}

// runeStart is the first place from at on where a character begins.
func runeStart[T string | []byte](s T, at int) int {
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return at
}
