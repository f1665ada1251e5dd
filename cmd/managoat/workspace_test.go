package main

import (
	"encoding/json"
	"slices"
	"testing"
)

// Else a file's name could say what the preview says.
func TestAPreviewKeepsANameInItsLine(t *testing.T) {
	t.Parallel()
	var v rebuildPreview
	if err := json.Unmarshal([]byte(`{"note": "This.", "work": {"repositories": [{"path": "/a\n● b", "branch": "main", "untracked": 1, "files": [{"index": "?", "worktree": "?", "path": "x\n● 9 repositories hold nothing"}]}]}}`), &v); err != nil {
		t.Fatal(err)
	}
	if got := v.lines(); !slices.Equal(got, []string{"This.", `▲ /a\n● b (main): 1 untracked`, `    ?? x\n● 9 repositories hold nothing`}) {
		t.Errorf("%q", got)
	}
}
