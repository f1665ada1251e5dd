package input

import (
	"encoding/base64"
	"strconv"

	"github.com/google/uuid"

	"managoat/internal/refusal"
)

// Sizes of a page of a list.
const (
	DefaultLimit = 100
	MaxLimit     = 500
)

// Page asks for a part of a list: at most Limit items (0: DefaultLimit) that come after Cursor, which is what the page
// before said ("": from the start).
type Page struct {
	Limit  int
	Cursor string
}

// List is a page of a list. Next is the cursor of the page after it, "" on the last one.
type List[T any] struct {
	Items   []T
	Limit   int
	HasMore bool
	Next    string
}

// Size is how many items the page has at most.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return DefaultLimit
	}
	return min(p.Limit, MaxLimit)
}

// Fetch is how many rows to read: one more than the page holds, which tells whether there is another page.
func (p Page) Fetch() int32 { return int32(p.Size() + 1) }

// ID reads a cursor that is an id; nil when there is none.
func (p Page) ID() (*uuid.UUID, error) {
	if p.Cursor == "" {
		return nil, nil
	}
	id, err := uuid.Parse(p.Cursor)
	if err != nil {
		return nil, badCursor()
	}
	return &id, nil
}

// Name reads a cursor that NameCursor made; nil when there is none.
func (p Page) Name() (*string, error) {
	if p.Cursor == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err != nil || !storable(string(b)) {
		return nil, badCursor()
	}
	name := string(b)
	return &name, nil
}

// Number reads a cursor that NumberCursor made; nil when there is none.
func (p Page) Number() (*int32, error) {
	if p.Cursor == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(p.Cursor, 10, 32)
	if err != nil {
		return nil, badCursor()
	}
	number := int32(n)
	return &number, nil
}

// NumberCursor is the cursor of a list that is sorted by a number.
func NumberCursor(n int) string { return strconv.Itoa(n) }

// NameCursor is the cursor of a list that is sorted by name.
func NameCursor(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// Paged makes the page of the rows that Fetch asked for. cursor names an item in the cursor of the next page.
func Paged[R, T any](p Page, rows []R, item func(R) T, cursor func(T) string) List[T] {
	out := List[T]{Items: []T{}, Limit: p.Size(), HasMore: len(rows) > p.Size()}
	for _, r := range rows[:min(len(rows), p.Size())] {
		out.Items = append(out.Items, item(r))
	}
	if out.HasMore {
		out.Next = cursor(out.Items[len(out.Items)-1])
	}
	return out
}

func badCursor() error {
	return refusal.New(refusal.BadRequest, "The cursor is not one that a list gave. Begin without a cursor.")
}
