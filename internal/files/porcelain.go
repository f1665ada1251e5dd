package files

import (
	"strconv"
	"strings"
)

// GitEntry is one path that differs. Index and Worktree are git's letters for what is staged and what is not: M, T, A, D,
// R, C, U; "?" for both is an untracked path; "" is no difference.
type GitEntry struct {
	Path        string `json:"path" doc:"from the repository's root"`
	Index       string `json:"index"`
	Worktree    string `json:"worktree"`
	RenamedFrom string `json:"renamed_from,omitempty"`
	Conflict    bool   `json:"conflict,omitempty" doc:"both sides of a merge changed it"`
	Submodule   bool   `json:"submodule,omitempty"`
}

// porcelain is the output of git status --porcelain=v2 -z --branch, read.
type porcelain struct {
	oid      string // "" before the first commit
	branch   string // "" when detached
	upstream string
	ahead    int
	behind   int
	stashes  int // where they were asked for

	staged, unstaged, untracked int
	entries                     []GitEntry // the first MaxEntries
	cut                         bool       // there are more
}

// parsePorcelain reads whole records; a last one without its NUL was cut and is left out, as is what cannot be read.
// Names hold any byte but NUL, spaces, newlines and arrows included.
func parsePorcelain(out string) porcelain {
	var p porcelain
	next := func() (string, bool) {
		record, rest, ok := strings.Cut(out, "\x00")
		if ok {
			out = rest
		}
		return record, ok
	}
	for {
		record, ok := next()
		if !ok {
			return p
		}
		kind, rest, _ := strings.Cut(record, " ")
		switch kind {
		case "#":
			p.header(rest)
		case "?":
			if rest != "" {
				p.add(GitEntry{Path: rest, Index: "?", Worktree: "?"})
			}
		case "1": // XY sub mH mI mW hH hI path
			if f := strings.SplitN(rest, " ", 8); len(f) == 8 && f[7] != "" {
				p.change(f, GitEntry{Path: f[7]})
			}
		case "2": // XY sub mH mI mW hH hI Xscore path NUL from
			from, ok := next()
			if !ok {
				return p
			}
			if f := strings.SplitN(rest, " ", 9); len(f) == 9 && f[8] != "" {
				p.change(f, GitEntry{Path: f[8], RenamedFrom: from})
			}
		case "u": // XY sub m1 m2 m3 mW h1 h2 h3 path
			if f := strings.SplitN(rest, " ", 10); len(f) == 10 && f[9] != "" {
				p.change(f, GitEntry{Path: f[9], Conflict: true})
			}
		}
	}
}

func (p *porcelain) header(line string) {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "branch.oid":
		if value != "(initial)" {
			p.oid = value
		}
	case "branch.head":
		if value != "(detached)" {
			p.branch = value
		}
	case "branch.upstream":
		p.upstream = value
	case "branch.ab":
		ahead, behind, _ := strings.Cut(value, " ")
		p.ahead, _ = strconv.Atoi(strings.TrimPrefix(ahead, "+"))
		p.behind, _ = strconv.Atoi(strings.TrimPrefix(behind, "-"))
	case "stash":
		p.stashes, _ = strconv.Atoi(value)
	}
}

// change adds a path that git knows.
func (p *porcelain) change(fields []string, e GitEntry) {
	xy := fields[0]
	if len(xy) != 2 {
		return
	}
	e.Index, e.Worktree, e.Submodule = letter(xy[0]), letter(xy[1]), strings.HasPrefix(fields[1], "S")
	p.add(e)
}

func (p *porcelain) add(e GitEntry) {
	switch {
	case e.Index == "?":
		p.untracked++
	default:
		if e.Index != "" {
			p.staged++
		}
		if e.Worktree != "" {
			p.unstaged++
		}
	}
	if p.cut = len(p.entries) == MaxEntries; !p.cut { // of a short name an entry is twenty times its record
		p.entries = append(p.entries, e)
	}
}

func letter(c byte) string {
	if c == '.' {
		return ""
	}
	return string(rune(c))
}
