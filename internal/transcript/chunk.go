package transcript

import "encoding/json"

// chunk is a row's piece of a text, if that is what it is.
func chunk(r Row) (text string, ok bool) {
	switch b := r.Body.(type) {
	case MessageBody:
		return b.Text, r.Tool == nil
	case ThoughtBody:
		return b.Text, r.Tool == nil
	case ToolOutputBody:
		return b.Text, r.Tool == nil
	}
	return "", false
}

// lineOf is the protocol line to store with a row. A secret can be split between the chunks of a text, so that no line
// alone gives it away but all of them do: a chunk's line is stored around the text that passed the gate, or not at all.
func lineOf(r Row) string {
	text, ok := chunk(r)
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
