package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

// printer writes what machines said. On a terminal control characters are shown, not obeyed: output must not be able
// to move the cursor, change the title or answer for the person.
type printer struct {
	w        io.Writer
	terminal bool
}

func stdout() printer {
	return printer{os.Stdout, term.IsTerminal(int(os.Stdout.Fd()))}
}

func (p printer) text(s string) {
	if p.terminal {
		s = visible(s)
	}
	fmt.Fprint(p.w, s)
}

// visible escapes every control character but newline and tab.
func visible(s string) string {
	plain := func(r rune) bool {
		return r == '\n' || r == '\t' || !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case plain(r):
			b.WriteRune(r)
		case r == '\r':
			b.WriteString(`\r`)
		case r == 0x1b:
			b.WriteString(`\e`)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func (p printer) json(v any) error {
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes rows in aligned columns, below their header.
func (p printer) table(header []string, rows [][]string) error {
	return p.columns(append([][]string{header}, rows...))
}

// pairs writes names with their values. One without a value is left out.
func (p printer) pairs(all [][]string) error {
	return p.columns(slices.DeleteFunc(all, func(pair []string) bool { return pair[1] == "" }))
}

func (p printer) columns(rows [][]string) error {
	tw := tabwriter.NewWriter(p.w, 2, 0, 3, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = visible(strings.ReplaceAll(row[i], "\n", " "))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// duration is 12 ms, 3.4 s, 2 m 05 s.
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d m %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
