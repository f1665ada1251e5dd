package views

import (
	"context"
	"io"

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
	IDFacts        = "facts"
	IDComposerNote = "composer-note"
	IDAnnounce     = "announce"
	IDWorkspace    = "workspace-state"
	IDSetup        = "setup"
	IDOverview     = "overview"
	IDList         = "list"
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
