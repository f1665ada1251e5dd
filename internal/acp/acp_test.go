package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func collect(l *Lines, chunks ...string) []string {
	var out []string
	for _, c := range chunks {
		for _, line := range l.Write([]byte(c)) {
			out = append(out, fmt.Sprintf("%d-%d %s", line.Start, line.End, line.Data))
		}
	}
	return out
}

func TestLinesAreTheSameHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	stream := "one\n\nzwei – drei\r\nlast\n"
	want := collect(NewLines(7), stream)
	if !slices.Equal(want, []string{"7-11 one", "11-12 ", "12-27 zwei – drei", "27-32 last"}) {
		t.Fatalf("%q", want)
	}
	for a := range len(stream) {
		for b := a; b < len(stream); b++ {
			if got := collect(NewLines(7), stream[:a], stream[a:b], stream[b:]); !slices.Equal(got, want) {
				t.Fatalf("cut at %d and %d: %q", a, b, got)
			}
		}
	}
}

func FuzzLinesKeepEveryByteInOrder(f *testing.F) {
	f.Add([]byte("a\nbb\r\n\n"), 2)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		cut = min(max(cut, 0), len(stream))
		l := NewLines(0)
		lines := append(l.Write(slices.Clone(stream[:cut])), l.Write(slices.Clone(stream[cut:]))...)
		if rest, ok := l.Rest(); ok {
			lines = append(lines, rest)
		}
		at := int64(0)
		for _, line := range lines {
			if line.Start != at || line.End <= line.Start {
				t.Fatalf("a line of %d to %d after %d", line.Start, line.End, at)
			}
			whole := string(stream[line.Start:line.End])
			if whole = strings.TrimSuffix(strings.TrimSuffix(whole, "\n"), "\r"); string(line.Data) != whole {
				t.Fatalf("%q, want %q", line.Data, whole)
			}
			at = line.End
		}
		if at != int64(len(stream)) {
			t.Fatalf("lines end at %d of %d", at, len(stream))
		}
	})
}

func TestALineOverTheLimitIsDroppedWhileItIsRead(t *testing.T) {
	t.Parallel()
	l := NewLines(0)
	start := `{"jsonrpc":"2.0","id":41,"method":"fs/write_text_file","params":{"content":"`
	l.Write([]byte(start))
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range 20 {
		if got := l.Write(chunk); got != nil {
			t.Fatal("a line came early")
		}
	}
	if at, ok := l.Dropping(); !ok || at != int64(len(start)+20<<20) {
		t.Fatalf("dropping %d %v", at, ok)
	}
	if cap(l.buf) > 2*head {
		t.Errorf("%d bytes are kept", cap(l.buf))
	}
	lines := l.Write([]byte("\"}}\nnext\n"))
	if len(lines) != 2 || !lines[0].Long || string(lines[1].Data) != "next" || lines[1].Start != lines[0].End {
		t.Fatalf("%d lines", len(lines))
	}
	if m := Truncated(lines[0].Data); !m.Request() || m.Method != "fs/write_text_file" || string(m.ID) != "41" {
		t.Errorf("%+v", m)
	}
}

func TestOnlyMessagesAreMessages(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"jsonrpc":"2.0","method":"session/update","params":{}}`:      "notification",
		`{"jsonrpc":"2.0","id":0,"method":"x"}`:                        "request",
		`{"jsonrpc":"2.0","id":"a","method":"x"}`:                      "request",
		`{"jsonrpc":"2.0","id":null,"method":"x"}`:                     "notification",
		`{"jsonrpc":"2.0","id":3,"result":null}`:                       "response",
		`{"jsonrpc":"2.0","id":3,"result":{}}`:                         "response",
		`{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"no"}}`:   "response",
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`: "",
		`{}`:                     "",
		`[]`:                     "",
		`"text"`:                 "",
		`npm WARN`:               "",
		`{"method":`:             "",
		``:                       "",
		"  {\"method\":\"x\"}  ": "notification",
	} {
		m, err := Parse([]byte(line))
		got := ""
		switch {
		case err != nil:
		case m.Request():
			got = "request"
		case m.Response():
			got = "response"
		default:
			got = "notification"
		}
		if got != want {
			t.Errorf("%s is a %q, want %q", line, got, want)
		}
	}
}

// echo is an agent that answers each request as told.
func echo(answer func(m Message) string) (*Peer, *[]string) {
	var p *Peer
	sent := &[]string{}
	p = NewPeer(100, func(_ context.Context, line []byte) error {
		*sent = append(*sent, string(line))
		m, err := Parse(line)
		if err != nil {
			return err
		}
		if a := answer(m); a != "" && m.Request() {
			reply, err := Parse([]byte(a))
			if err != nil {
				return err
			}
			reply.ID = m.ID
			p.Deliver(reply)
		}
		return nil
	})
	return p, sent
}

func TestCallsGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	p, sent := echo(func(m Message) string {
		switch m.Method {
		case "good":
			return `{"id":1,"result":{"n":7}}`
		case "bad":
			return `{"id":1,"error":{"code":-32602,"message":"no such session","data":{"id":"x"}}}`
		}
		return ""
	})
	var result struct{ N int }
	if err := p.Call(t.Context(), "good", map[string]any{"a": 1}, &result); err != nil || result.N != 7 {
		t.Fatalf("%+v %v", result, err)
	}
	if (*sent)[0] != `{"id":101,"jsonrpc":"2.0","method":"good","params":{"a":1}}`+"\n" {
		t.Errorf("sent %q", (*sent)[0])
	}
	var refused *Error
	if err := p.Call(t.Context(), "bad", nil, nil); !errors.As(err, &refused) || refused.Code != -32602 || err.Error() != `bad: no such session (-32602): {"id":"x"}` {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	patience := errors.New("patience ended")
	cancel(patience)
	if err := p.Call(ctx, "silent", nil, nil); !errors.Is(err, patience) {
		t.Errorf("%v", err)
	}
	if p.Deliver(Message{ID: json.RawMessage("103"), Result: json.RawMessage("{}")}) {
		t.Error("an answer to a call that is over was taken")
	}
	if p.Deliver(Message{ID: json.RawMessage(`"x"`), Result: json.RawMessage("{}")}) {
		t.Error("an answer with an id that is not ours was taken")
	}
	crash := errors.New("exit code 3")
	waiting := make(chan error)
	silent, _ := echo(func(Message) string { return "" })
	go func() { waiting <- silent.Call(context.Background(), "silent", nil, nil) }()
	go silent.Close(crash)
	if err := <-waiting; !errors.Is(err, crash) {
		t.Errorf("%v", err)
	}
	if err := silent.Call(t.Context(), "late", nil, nil); !errors.Is(err, crash) {
		t.Errorf("%v", err)
	}
}
