package transcript

import "encoding/json"

// chunkKey names the text that a chunk is a piece of.
type chunkKey struct{ kind, id, stream string }

// chunk tells whether a row is a piece of a text, of which, and the piece.
func chunk(r Row) (key chunkKey, text string, ok bool) {
	switch b := r.Body.(type) {
	case MessageBody:
		return chunkKey{Message, b.MessageID, ""}, b.Text, r.Tool == nil
	case ThoughtBody:
		return chunkKey{Thought, b.MessageID, ""}, b.Text, r.Tool == nil
	case ToolOutputBody:
		return chunkKey{ToolOutput, b.ID, b.Stream}, b.Text, r.Tool == nil
	}
	return chunkKey{}, "", false
}

// join adds a later chunk to an earlier one; false when they are not of one text, turn and owner.
func join(a, b Row) (Row, bool) {
	key, _, ok := chunk(a)
	other, more, both := chunk(b)
	if !ok || !both || key != other || !same(a.TurnID, b.TurnID) || !same(a.Fence, b.Fence) {
		return Row{}, false
	}
	switch x := a.Body.(type) {
	case MessageBody:
		x.Text += more
		a.Body = x
	case ThoughtBody:
		x.Text += more
		a.Body = x
	case ToolOutputBody:
		x.Text += more
		a.Body = x
	}
	if b.Within != nil {
		a.Within = b.Within
	}
	return a, true
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// lineOf is the protocol line to store with a row. A secret can be split between the chunks of a text, so that no line
// alone gives it away but all of them do: a chunk's line is stored around the text that passed the gate, or not at all.
func lineOf(r Row) string {
	_, text, ok := chunk(r)
	switch {
	case !ok || r.Raw == "":
		return r.Raw
	case r.Type == ToolOutput:
		return "" // every adapter has its own place for it
	}
	line, ok := replaceAt(json.RawMessage(r.Raw), text, "params", "update", "content", "text")
	if !ok {
		return ""
	}
	return string(line)
}

// replaceAt puts a string in the place of another one in a JSON document.
func replaceAt(doc json.RawMessage, text string, path ...string) (json.RawMessage, bool) {
	if len(path) == 0 {
		if len(doc) == 0 || doc[0] != '"' {
			return nil, false
		}
		out, err := json.Marshal(text)
		return out, err == nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(doc, &object) != nil {
		return nil, false
	}
	inner, ok := replaceAt(object[path[0]], text, path[1:]...)
	if !ok {
		return nil, false
	}
	object[path[0]] = inner
	out, err := json.Marshal(object)
	return out, err == nil
}
