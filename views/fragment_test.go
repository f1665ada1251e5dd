package views

import (
	"context"
	"io"
	"strings"
	"testing"
)

func writeAs(text string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestAMessageSurvivesTheLineRulesOfEventStreams(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := WriteMessage(context.Background(), &out, "41", []Fragment{
		{Target: "transcript", Swap: SwapAppend, Content: plainHTML("<pre>a\r\nb\rc\n\nd</pre>")},
		{Target: "gone", Swap: SwapDelete},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "id: 41\n" +
		"data: <hx-partial hx-target=\"#transcript\" hx-swap=\"beforeend\"><pre>a\n" +
		"data: b\ndata: c\ndata: \ndata: d</pre></hx-partial>\n" +
		"data: <hx-partial hx-target=\"#gone\" hx-swap=\"delete\"></hx-partial>\n\n"
	if out.String() != want {
		t.Fatalf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestAMessageWithoutARowHasNoId(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := WriteMessage(context.Background(), &out, "", []Fragment{Announce("Turn 4 <ended>")}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "id:") || !strings.Contains(out.String(), "Turn 4 &lt;ended&gt;") {
		t.Fatal(out.String())
	}
}
