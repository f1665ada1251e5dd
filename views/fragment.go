package views

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"github.com/a-h/templ"
)

// Swap is how a fragment enters the page.
type Swap string

// The swaps that streams use.
const (
	SwapAppend  Swap = "beforeend"  // at the end of the target's children
	SwapPrepend Swap = "afterbegin" // before the first of the target's children
	SwapMorph   Swap = "outerMorph" // the target becomes the content, keeping what is equal, focus and selection
	SwapReplace Swap = "outerHTML"  // the content in the target's place
	SwapInner   Swap = "innerHTML"  // the content in place of the target's children
	SwapDelete  Swap = "delete"     // the target goes
)

// Fragment changes one element of a page.
type Fragment struct {
	Target  string // the element's id
	Swap    Swap
	Content templ.Component // nil for SwapDelete
}

// Elements of pages that handlers address.
const (
	IDTranscript   = "transcript"
	IDTurnState    = "turn-state"
	IDWorking      = "working"
	IDQueue        = "queue"
	IDSend         = "send"
	IDFacts        = "facts"
	IDComposer     = "end"
	IDComposerNote = "composer-note"
	IDAnnounce     = "announce"
	IDWorkspace    = "workspace-state"
	IDSetup        = "setup"
	IDOverview     = "overview"
	IDList         = "list"
	IDTabs         = "tabs"
)

// Announce tells screen readers what a person waits for: the end of a turn, a question, a failure.
func Announce(text string) Fragment {
	return Fragment{Target: IDAnnounce, Swap: SwapInner, Content: plainText(text)}
}

// Partials is the payload of one message of the HTML stream, and of an answer that changes several places.
// It is written by hand so that no white space comes between a target and its content: what a stream built
// is then node for node what a page would have rendered.
func Partials(fragments []Fragment) templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
		for _, f := range fragments {
			if _, err := io.WriteString(w, `<hx-partial hx-target="#`+templ.EscapeString(f.Target)+`" hx-swap="`+string(f.Swap)+`">`); err != nil {
				return err
			}
			if f.Content != nil {
				if err := f.Content.Render(ctx, w); err != nil {
					return err
				}
			}
			if _, err := io.WriteString(w, "</hx-partial>\n"); err != nil {
				return err
			}
		}
		return nil
	})
}

// WriteMessage writes one message of the HTML stream: fragments under the id that a client resumes from
// ("" when the message covers no row). The caller flushes.
func WriteMessage(ctx context.Context, w io.Writer, id string, fragments []Fragment) error {
	var body bytes.Buffer
	if err := Partials(fragments).Render(ctx, &body); err != nil {
		return err
	}
	var frame bytes.Buffer
	if id != "" {
		frame.WriteString("id: " + id + "\n")
	}
	// A carriage return ends a line in an event stream; in HTML it is a line break all the same.
	for line := range strings.SplitSeq(lineBreaks.Replace(strings.TrimSuffix(body.String(), "\n")), "\n") {
		frame.WriteString("data: " + line + "\n")
	}
	frame.WriteString("\n")
	_, err := w.Write(frame.Bytes())
	return err
}

var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// Beat is the message that says a stream lives; BeatEvery is how often it must come. End closes the stream
// for good: the client does not come back.
const (
	Beat      = "event: beat\ndata:\n\n"
	BeatEvery = 15 * time.Second
	End       = "event: end\ndata:\n\n"
)
