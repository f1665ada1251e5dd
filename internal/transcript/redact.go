package transcript

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"managoat/internal/secret"
)

// MinSecret is the shortest value that is masked, in bytes. Shorter ones stand everywhere by chance.
const MinSecret = 8

// Redactor finds secrets in text, in the forms they take on their way (see forms). Safe for concurrent use.
type Redactor struct {
	mu     sync.Mutex
	values map[string]bool
	find   atomic.Pointer[automaton]
}

// NewRedactor makes a redactor of some values.
func NewRedactor(values ...secret.Value) *Redactor {
	r := &Redactor{values: map[string]bool{}}
	r.find.Store(newAutomaton(nil))
	r.Set(values)
	return r
}

// Set makes it know these values beside all it knew before: a value that was rotated away may still be printed by
// whoever read it earlier. Streams that are open know them from their next chunk on.
func (r *Redactor) Set(values []secret.Value) {
	r.change(func() (changed bool) {
		for _, v := range values {
			if s := v.Reveal(); len(s) >= MinSecret && !r.values[s] {
				r.values[s], changed = true, true
			}
		}
		return changed
	})
}

// Drop forgets values, once nobody can print them any more.
func (r *Redactor) Drop(values []secret.Value) {
	r.change(func() (changed bool) {
		for _, v := range values {
			if s := v.Reveal(); r.values[s] {
				delete(r.values, s)
				changed = true
			}
		}
		return changed
	})
}

func (r *Redactor) change(values func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !values() {
		return
	}
	var patterns []string
	for v := range r.values {
		patterns = append(patterns, forms(v)...)
	}
	r.find.Store(newAutomaton(patterns))
}

// Text masks every secret in a whole text, and its end when that is more than half of one.
func (r *Redactor) Text(s string) string {
	a := r.find.Load()
	spans, at := a.scan(s)
	return mask(s, a.most(spans, at, len(s)))
}

// Bytes masks every secret in data that is not necessarily text.
func (r *Redactor) Bytes(b []byte) []byte {
	s := string(b)
	if t := r.Text(s); t != s {
		return []byte(t)
	}
	return b
}

// Longest is the length of the longest form of any secret: how far to read past a cut so that none is cut in half.
func (r *Redactor) Longest() int { return r.find.Load().longest }

func mask(s string, spans []span) string {
	if len(spans) == 0 {
		return s
	}
	var b strings.Builder
	at := 0
	for _, sp := range spans {
		b.WriteString(s[at:sp.from])
		b.WriteString(secret.Mask)
		at = sp.to
	}
	b.WriteString(s[at:])
	return b.String()
}

// span is a half-open range of bytes.
type span struct{ from, to int }

// automaton finds every occurrence of every pattern in one pass (Aho and Corasick). Its nodes are numbered breadth first,
// so that the children of a node lie side by side and a node is a place in a few flat slices, about 17 bytes in all.
type automaton struct {
	label   []byte     // by which a node is reached from its parent
	kids    []int32    // the first child; those of the next node begin where these end
	fail    []int32    // the longest proper suffix that is a node too
	depths  []int32    // length of what the node stands for
	match   []int32    // length of the longest pattern that ends here; 0: none
	goal    []int32    // length of the shortest pattern that the node begins
	root    [256]int32 // the children of node 0
	longest int
}

func newAutomaton(patterns []string) *automaton {
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	a := &automaton{label: []byte{0}, fail: []int32{0}, depths: []int32{0}, match: []int32{0}, goal: []int32{0}}
	type part struct{ from, to int } // of the sorted patterns: those that a node begins
	parts := []part{{0, len(patterns)}}
	for at := 0; at < len(parts); at++ {
		p, d := parts[at], int(a.depths[at])
		parts[at] = part{}
		a.kids = append(a.kids, int32(len(parts)))
		if p.from < p.to && len(patterns[p.from]) == d && d > 0 { // the shortest is the first
			a.match[at], a.goal[at] = int32(d), int32(d)
			a.longest = max(a.longest, d)
			p.from++
		}
		for p.from < p.to {
			k, to := patterns[p.from][d], p.from+1
			for to < p.to && patterns[to][d] == k {
				to++
			}
			child := int32(len(parts))
			parts = append(parts, part{p.from, to})
			a.label, a.depths = append(a.label, k), append(a.depths, int32(d+1))
			a.match, a.goal = append(a.match, 0), append(a.goal, 0)
			if at == 0 {
				a.root[k] = child
				a.fail = append(a.fail, 0)
			} else {
				a.fail = append(a.fail, a.step(a.fail[at], k))
			}
			p.from = to
		}
		a.match[at] = max(a.match[at], a.match[a.fail[at]])
	}
	a.kids = append(a.kids, int32(len(parts)))
	for at := len(parts) - 1; at > 0; at-- {
		for kid := a.kids[at]; kid < a.kids[at+1]; kid++ {
			if a.goal[at] == 0 || a.goal[kid] < a.goal[at] {
				a.goal[at] = a.goal[kid]
			}
		}
	}
	return a
}

// step goes from a node by a byte. Its cost is paid for by the steps that led to the node.
func (a *automaton) step(at int32, k byte) int32 {
	for at != 0 {
		for kid, end := a.kids[at], a.kids[at+1]; kid < end; kid++ {
			if a.label[kid] == k {
				return kid
			}
		}
		at = a.fail[at]
	}
	return a.root[k]
}

// scan finds the ranges to mask, joined where they overlap, and the node at the end: what could still become a secret.
func (a *automaton) scan(s string) (spans []span, at int32) {
	for i := 0; i < len(s); i++ {
		if at == 0 {
			if at = a.root[s[i]]; at == 0 {
				continue
			}
		} else {
			at = a.step(at, s[i])
		}
		if n := int(a.match[at]); n > 0 {
			spans = merge(spans, span{i + 1 - n, i + 1})
		}
	}
	return spans, at
}

// merge adds a range that ends where no other ends later.
func merge(spans []span, sp span) []span {
	for len(spans) > 0 && spans[len(spans)-1].to > sp.from {
		sp.from = min(sp.from, spans[len(spans)-1].from)
		spans = spans[:len(spans)-1]
	}
	return append(spans, sp)
}

func (a *automaton) depth(at int32) int { return int(a.depths[at]) }

// most adds the end of a text of n bytes when it is more than half of a secret.
func (a *automaton) most(spans []span, at int32, n int) []span {
	for ; at != 0; at = a.fail[at] {
		if d := a.depth(at); d >= MinSecret && 2*d > int(a.goal[at]) {
			return merge(spans, span{n - d, n})
		}
	}
	return spans
}
