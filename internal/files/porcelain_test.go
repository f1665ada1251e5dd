package files

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"managoat/internal/transcript"
)

func TestPorcelainRecordsAreReadWhateverTheNames(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0", 40)
	out := strings.Join([]string{
		"# branch.oid " + hash, "# branch.head feature/x", "# branch.upstream origin/feature/x", "# branch.ab +2 -13", "# stash 3",
		"1 .M N... 100644 100644 100644 " + hash + " " + hash + " with space",
		"1 A. N... 000000 100644 100644 " + hash + " " + hash + " new\nline\ttab",
		"1 .M SC.. 160000 160000 160000 " + hash + " " + hash + " module",
		"2 R. N... 100644 100644 100644 " + hash + " " + hash + " R100 to -> there", "from -> here",
		"2 .C N... 100644 100644 100644 " + hash + " " + hash + " C75 copy", "1 . original",
		"u UU N... 100644 100644 100644 100644 " + hash + " " + hash + " " + hash + " both \"sides\"",
		"? 日本語 \xff\\", "! ignored", "",
	}, "\x00")
	got := parsePorcelain(out)
	want := []GitEntry{
		{Path: "with space", Worktree: "M"},
		{Path: "new\nline\ttab", Index: "A"},
		{Path: "module", Worktree: "M", Submodule: true},
		{Path: "to -> there", Index: "R", RenamedFrom: "from -> here"},
		{Path: "copy", Worktree: "C", RenamedFrom: "1 . original"},
		{Path: "both \"sides\"", Index: "U", Worktree: "U", Conflict: true},
		{Path: "日本語 \xff\\", Index: "?", Worktree: "?"},
	}
	if !slices.Equal(got.entries, want) {
		t.Errorf("entries %+v", got.entries)
	}
	if got.staged != 3 || got.unstaged != 4 || got.untracked != 1 || got.cut {
		t.Errorf("counted %+v", got)
	}
	if got.branch != "feature/x" || got.oid != hash || got.upstream != "origin/feature/x" || got.ahead != 2 || got.behind != 13 {
		t.Errorf("head %+v", got)
	}
	if p := parsePorcelain("# branch.oid (initial)\x00# branch.head (detached)\x00"); p.oid != "" || p.branch != "" {
		t.Errorf("an empty detached repository: %+v", p)
	}
}

func TestAPorcelainOutputThatWasCutHasNoHalfRecord(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0", 40)
	whole := "? a\x00" + "2 R. N... 100644 100644 100644 " + hash + " " + hash + " R100 to\x00from\x00? b\x00"
	full := parsePorcelain(whole).entries
	for n := range len(whole) {
		got := parsePorcelain(whole[:n]).entries
		if len(got) > len(full) || !slices.Equal(got, full[:len(got)]) {
			t.Errorf("cut at %d: %+v", n, got)
		}
	}
}

// What is kept of a repository is small, however long its state is, and whatever says that it is git.
func TestWhatIsShownOfAStateDoesNotKeepAllOfIt(t *testing.T) {
	t.Parallel()
	r := &repository{disk: &disk{gate: transcript.NewGate(transcript.NewRedactor())}}
	p := parsePorcelain("? short\x00? " + strings.Repeat("x", maxPath-1) + "é" + strings.Repeat("x", 1<<20) + "\x00")
	got := r.entries(p, 20)
	if unsafe.StringData(got[0].Path) == unsafe.StringData(p.entries[0].Path) {
		t.Error("a name lies in what was read")
	}
	if p = parsePorcelain(strings.Repeat("? x\x00", MaxEntries+5)); len(p.entries) != MaxEntries || p.untracked != MaxEntries+5 || !p.cut {
		t.Errorf("%d entries, %d untracked, cut %v", len(p.entries), p.untracked, p.cut)
	}
	if got[0].Path != "short" || got[1].Path != strings.Repeat("x", maxPath-1) {
		t.Errorf("%s, and one of %d bytes", got[0].Path, len(got[1].Path))
	}
}

func FuzzPorcelain(f *testing.F) {
	hash := strings.Repeat("0", 40)
	f.Add("# branch.ab +1 -1\x001 .M N... 1 1 1 " + hash + " " + hash + " p\x00")
	f.Add("2 R. N... 1 1 1 " + hash + " " + hash + " R1 to\x00from\x00")
	f.Add("u UU N... 1 1 1 1 a b c p\x00? x\x00! y\x00")
	f.Add("1 \x002 \x00u \x00?\x00# \x00#")
	f.Fuzz(func(t *testing.T, out string) {
		p := parsePorcelain(out)
		if len(p.entries) > strings.Count(out, "\x00") {
			t.Fatalf("%d entries of %d records", len(p.entries), strings.Count(out, "\x00"))
		}
		for _, e := range p.entries {
			if e.Path == "" || strings.Contains(e.Path, "\x00") || len(e.Index) > 2 || len(e.Worktree) > 2 {
				t.Fatalf("entry %+v", e)
			}
		}
	})
}
