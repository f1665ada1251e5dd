package refusal

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/errors.md instead of comparing it")

// The documentation of codes is made from the table: go test ./internal/refusal -update
func TestTheErrorsPageSaysWhatTheTableSays(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Errors\n\nEvery refusal is `{\"error\": \"<code>\", \"message\": \"<sentence with the next step>\", …}` with the extra fields its\ncode promises. This page is made from the one table of codes (`internal/refusal`).\n\n| code | status | meaning | extra fields |\n|---|---|---|---|\n")
	for _, e := range Table() {
		fields := "–"
		if len(e.Fields) > 0 {
			fields = "`" + strings.Join(e.Fields, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", e.Code, e.Status, e.Meaning, fields)
	}
	const page = "../../docs/errors.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("docs/errors.md is not what the table says: go test ./internal/refusal -update")
	}
}

func TestARefusalCarriesItsCodeMessageAndFields(t *testing.T) {
	t.Parallel()
	r := New(InsufficientScope, "A sandbox key cannot do %s.", "this").With("required_scope", "full")
	b, err := r.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"error":"insufficient_scope","message":"A sandbox key cannot do this.","reason":"insufficient_scope","required_scope":"full"}`
	if string(b) != want {
		t.Fatalf("got %s\nwant %s", b, want)
	}
	if r.Status() != 403 {
		t.Fatal(r.Status())
	}
}
