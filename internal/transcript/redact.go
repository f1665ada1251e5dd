package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"managoat/internal/secret"
)

// MinSecret is the shortest value that is masked, in bytes. Shorter ones stand everywhere by chance.
const MinSecret = 8

// Redactor finds secrets in text, in the forms they take on their way: as they are, JSON-escaped, URL-encoded, base64
// at any alignment (so inside basic-auth too), and each line of a value of several lines. Safe for concurrent use.
type Redactor struct {
	mu     sync.Mutex
	values map[string]bool
	find   atomic.Pointer[automaton]
}

// NewRedactor makes a redactor of some values.
func NewRedactor(values ...secret.Value) *Redactor {
	r := &Redactor{values: map[string]bool{}}
	r.Set(values)
	return r
}

// Set makes it know these values beside all it knew before: a value that was rotated away may still be printed by
// whoever read it earlier.
func (r *Redactor) Set(values []secret.Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.find.Load() == nil
	for _, v := range values {
		if s := v.Reveal(); len(s) >= MinSecret && !r.values[s] {
			r.values[s] = true
			changed = true
		}
	}
	if !changed {
		return
	}
	var patterns []string
	for v := range r.values {
		patterns = append(patterns, forms(v)...)
	}
	r.find.Store(newAutomaton(patterns))
}

// Text masks every secret in a whole text.
func (r *Redactor) Text(s string) string {
	a := r.find.Load()
	spans, _ := a.scan(s)
	if len(spans) == 0 {
		return s
	}
	return mask(s, spans)
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

// forms are the texts that give a secret away.
func forms(value string) []string {
	parts := []string{value}
	if strings.ContainsAny(value, "\r\n") {
		parts = append(parts, strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })...)
	}
	var out []string
	for _, p := range parts {
		if len(p) < MinSecret {
			continue
		}
		for _, f := range []string{p, clean(p), jsonForm(p, false), jsonForm(p, true), url.QueryEscape(p), url.PathEscape(p)} {
			out = append(out, f)
		}
		for shift := range 3 {
			out = append(out, base64Form(base64.RawStdEncoding, p, shift), base64Form(base64.RawURLEncoding, p, shift))
		}
	}
	out = slices.DeleteFunc(out, func(s string) bool { return len(s) < MinSecret })
	slices.Sort(out)
	return slices.Compact(out)
}

func jsonForm(s string, html bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	if enc.Encode(s) != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

// base64Form is what base64 shows of s when shift bytes stand before it: the characters that s alone decides.
func base64Form(enc *base64.Encoding, s string, shift int) string {
	all := enc.EncodeToString(append(make([]byte, shift), s...))
	from, to := (shift*8+5)/6, (shift+len(s))*8/6
	if from >= to {
		return ""
	}
	return all[from:to]
}

// span is a half-open range of bytes.
type span struct{ from, to int }

// automaton finds every occurrence of every pattern in one pass (Aho and Corasick). Nodes keep their few edges sorted,
// so that thousands of patterns stay small.
type automaton struct {
	nodes   []node
	root    [256]int32
	longest int
}

type node struct {
	keys  []byte
	next  []int32
	fail  int32
	depth int32
	match int32 // length of the longest pattern that ends here; 0: none
}

func newAutomaton(patterns []string) *automaton {
	a := &automaton{nodes: []node{{}}}
	for _, p := range patterns {
		a.longest = max(a.longest, len(p))
		at := int32(0)
		for i := 0; i < len(p); i++ {
			next, ok := a.edge(at, p[i])
			if !ok {
				next = int32(len(a.nodes))
				a.nodes = append(a.nodes, node{depth: int32(i + 1)})
				n := &a.nodes[at]
				pos, _ := slices.BinarySearch(n.keys, p[i])
				n.keys = slices.Insert(n.keys, pos, p[i])
				n.next = slices.Insert(n.next, pos, next)
			}
			at = next
		}
		a.nodes[at].match = int32(len(p))
	}
	// Breadth first: a node's fail link is the longest proper suffix that is a prefix of some pattern.
	queue := append([]int32(nil), a.nodes[0].next...)
	for i, k := range a.nodes[0].keys {
		a.root[k] = a.nodes[0].next[i]
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for i, k := range a.nodes[at].keys {
			child := a.nodes[at].next[i]
			a.nodes[child].fail = a.step(a.nodes[at].fail, k)
			a.nodes[child].match = max(a.nodes[child].match, a.nodes[a.nodes[child].fail].match)
			queue = append(queue, child)
		}
	}
	return a
}

func (a *automaton) edge(at int32, k byte) (int32, bool) {
	n := &a.nodes[at]
	if len(n.keys) == 1 { // most nodes are on a pattern's way
		return n.next[0], n.keys[0] == k
	}
	i, ok := slices.BinarySearch(n.keys, k)
	if !ok {
		return 0, false
	}
	return n.next[i], true
}

func (a *automaton) step(at int32, k byte) int32 {
	for at != 0 {
		if next, ok := a.edge(at, k); ok {
			return next
		}
		at = a.nodes[at].fail
	}
	return a.root[k]
}

// scan finds the ranges to mask, merged where they overlap, and how many bytes at the end could begin a secret.
func (a *automaton) scan(s string) (spans []span, open int) {
	at := int32(0)
	for i := 0; i < len(s); i++ {
		at = a.step(at, s[i])
		if n := int(a.nodes[at].match); n > 0 {
			from := i + 1 - n
			for len(spans) > 0 && spans[len(spans)-1].to > from {
				from = min(from, spans[len(spans)-1].from)
				spans = spans[:len(spans)-1]
			}
			spans = append(spans, span{from, i + 1})
		}
	}
	return spans, int(a.nodes[at].depth)
}
