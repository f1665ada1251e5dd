package markup

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/a-h/templ"
	"github.com/aymanbagabas/go-udiff"
)

// FileDiff is one file of a unified diff.
type FileDiff struct {
	Path           string // where the file is now; the old place when it was deleted
	From           string // where it was, when that differs
	Note           string // "new file", "deleted", "renamed", "mode 100644 → 100755", "binary"; may be ""
	Added, Deleted int    // lines
	Lines          []DiffLine
}

// DiffLine is one line of a diff. Numbers are 1-based, 0 where the line does not exist on that side.
type DiffLine struct {
	Kind     DiffKind
	Old, New int
	Text     string // without the sign and the line end
}

// DiffKind says what a line of a diff is.
type DiffKind byte

// The kinds of lines of a diff.
const (
	DiffContext DiffKind = ' '
	DiffAdded   DiffKind = '+'
	DiffDeleted DiffKind = '-'
	DiffHunk    DiffKind = '@' // the line that opens a hunk, and remarks like "no newline at end of file"
)

// Changes is the diff between two versions of one text; empty Lines when they are equal.
func Changes(path, before, after string) FileDiff {
	files := ParseDiff(udiff.Unified(path, path, before, after))
	if len(files) == 0 {
		return FileDiff{Path: path}
	}
	file := files[0]
	file.Path, file.From = path, ""
	return file
}

var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)`)

// ParseDiff reads a unified diff as git and diff print it. It never fails: what it does not understand
// before the first file is left out, a diff that is cut in the middle gives what was there.
func ParseDiff(text string) []FileDiff {
	var files []FileDiff
	var file *FileDiff
	oldLine, newLine, oldLeft, newLeft := 0, 0, 0, 0
	open := func() {
		files = append(files, FileDiff{})
		file = &files[len(files)-1]
		oldLeft, newLeft = 0, 0
	}
	oldMode := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if file != nil && (oldLeft > 0 || newLeft > 0 || strings.HasPrefix(line, `\`)) && line != "" {
			switch line[0] {
			case '+':
				file.Lines = append(file.Lines, DiffLine{DiffAdded, 0, newLine, line[1:]})
				file.Added++
				newLine, newLeft = newLine+1, newLeft-1
				continue
			case '-':
				file.Lines = append(file.Lines, DiffLine{DiffDeleted, oldLine, 0, line[1:]})
				file.Deleted++
				oldLine, oldLeft = oldLine+1, oldLeft-1
				continue
			case ' ':
				file.Lines = append(file.Lines, DiffLine{DiffContext, oldLine, newLine, line[1:]})
				oldLine, oldLeft, newLine, newLeft = oldLine+1, oldLeft-1, newLine+1, newLeft-1
				continue
			case '\\':
				file.Lines = append(file.Lines, DiffLine{DiffHunk, 0, 0, strings.TrimSpace(line[1:])})
				continue
			}
		}
		value, _ := cutAny(line, "rename from ", "copy from ")
		switch {
		case strings.HasPrefix(line, "diff --git "):
			open()
			file.Path = gitPath(line)
		case strings.HasPrefix(line, "--- "):
			if file == nil || len(file.Lines) > 0 { // a plain diff has no line before this one
				open()
			}
			if path := diffPath(line[4:]); path != "" {
				file.From = path
			}
		case file == nil:
		case strings.HasPrefix(line, "+++ "):
			if path := diffPath(line[4:]); path != "" {
				file.Path = path
			} else if file.From != "" {
				file.Path = file.From
			}
		case value != "":
			file.From, file.Note = unquote(value), "renamed"
			if strings.HasPrefix(line, "copy") {
				file.Note = "copied"
			}
		case strings.HasPrefix(line, "new file mode"):
			file.Note = "new file"
		case strings.HasPrefix(line, "deleted file mode"):
			file.Note = "deleted"
		case strings.HasPrefix(line, "old mode "):
			oldMode = strings.TrimPrefix(line, "old mode ")
		case strings.HasPrefix(line, "new mode "):
			file.Note = "mode " + oldMode + " → " + strings.TrimPrefix(line, "new mode ")
		case strings.HasPrefix(line, "Binary files "), strings.HasPrefix(line, "GIT binary patch"):
			file.Note = strings.TrimPrefix(file.Note+", binary", ", ")
		default:
			if m := hunkHeader.FindStringSubmatch(line); m != nil {
				oldLine, oldLeft = span(m[1], m[2])
				newLine, newLeft = span(m[3], m[4])
				file.Lines = append(file.Lines, DiffLine{DiffHunk, 0, 0, strings.TrimSpace(m[5])})
			}
		}
	}
	for i := range files {
		if files[i].From == files[i].Path {
			files[i].From = ""
		}
	}
	return files
}

// span reads "start,count" of a hunk's header; a missing count is one line.
func span(start, count string) (first, lines int) {
	first, _ = strconv.Atoi(start)
	lines = 1
	if count != "" {
		lines, _ = strconv.Atoi(count)
	}
	return first, lines
}

func cutAny(s string, prefixes ...string) (rest string, ok bool) {
	for _, p := range prefixes {
		if rest, ok = strings.CutPrefix(s, p); ok {
			return rest, true
		}
	}
	return "", false
}

// diffPath reads the path of a ---/+++ line; "" for /dev/null.
func diffPath(s string) string {
	s, _, _ = strings.Cut(s, "\t") // diff appends a time stamp
	s = unquote(s)
	if s == "/dev/null" {
		return ""
	}
	if rest, ok := cutAny(s, "a/", "b/"); ok {
		return rest
	}
	return s
}

// gitPath takes the path of a "diff --git a/x b/x" line, which stands alone for binary files and modes.
func gitPath(line string) string {
	rest := strings.TrimPrefix(line, "diff --git ")
	if i := strings.LastIndex(rest, ` "b/`); i >= 0 {
		return diffPath(rest[i+1:])
	}
	if half := len(rest) / 2; len(rest)%2 == 1 && rest[half] == ' ' { // the usual case: the same path twice
		return diffPath(rest[half+1:])
	}
	if i := strings.LastIndex(rest, " b/"); i >= 0 {
		return diffPath(rest[i+1:])
	}
	return rest
}

// unquote undoes git's quoting of unusual names: "with\ttab", "\303\244".
func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		if plain, err := strconv.Unquote(s); err == nil {
			return plain
		}
	}
	return s
}

// Diff renders the lines of one file's changes as a table with line numbers.
func Diff(file FileDiff) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		if _, err := io.WriteString(w, `<div class="diff"><table><tbody>`); err != nil {
			return err
		}
		for i, line := range file.Lines {
			if i == 0 && line == (DiffLine{Kind: DiffHunk}) {
				continue // nothing stands before it that it would set apart
			}
			if err := writeDiffLine(w, line); err != nil {
				return err
			}
		}
		_, err := io.WriteString(w, "</tbody></table></div>")
		return err
	})
}

func writeDiffLine(w io.Writer, line DiffLine) error {
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	if line.Kind == DiffHunk {
		if _, err := io.WriteString(w, `<tr class="hunk"><td class="no"></td><td class="no"></td><td class="sign"></td><td>⋯ `); err != nil {
			return err
		}
	} else {
		class, sign := map[DiffKind]string{DiffAdded: "add", DiffDeleted: "del"}[line.Kind], string(rune(line.Kind))
		if line.Kind == DiffDeleted {
			sign = "−"
		}
		if class != "" {
			class = ` class="` + class + `"`
		}
		if _, err := fmt.Fprintf(w, `<tr%s><td class="no">%s</td><td class="no">%s</td><td class="sign">%s</td><td>`, class, number(line.Old), number(line.New), sign); err != nil {
			return err
		}
	}
	if err := visible(w, line.Text); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</td></tr>")
	return err
}
