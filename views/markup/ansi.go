package markup

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/a-h/templ"
)

// ANSI renders what a program printed: colours and weights of SGR sequences become classes (a-1 … a-6 for
// the colours, a-b bold, a-d dim, a-i, a-u, a-s, a-r reversed), every other escape sequence is dropped, and
// a line that was overwritten with carriage returns shows only what was left standing, as on a terminal.
// Everything opened is closed: the output is whole HTML, whatever came in.
func ANSI(text string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var style sgr
		for len(text) > 0 {
			line := text
			if end := strings.IndexByte(text, '\n'); end >= 0 {
				line = text[:end+1]
			}
			text = text[len(line):]
			if err := ansiLine(w, line, &style); err != nil {
				return err
			}
		}
		return nil
	})
}

// Plain is text without its escape sequences, for titles and for copying.
func Plain(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		esc := strings.IndexByte(text, 0x1b)
		if esc < 0 {
			out.WriteString(text)
			break
		}
		out.WriteString(text[:esc])
		size, _ := escape(text[esc:])
		text = text[esc+size:]
	}
	return out.String()
}

// ansiLine writes one line. Overwritten text still passes its escape sequences on, since a colour set
// before a carriage return holds after it.
func ansiLine(w io.Writer, line string, style *sgr) error {
	body := strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
	keep := 0 // where the text that is left standing starts
	if cr := strings.LastIndexByte(body, '\r'); cr >= 0 {
		keep = cr + 1
	}
	for i := 0; i < len(body); {
		if body[i] == 0x1b {
			size, params := escape(body[i:])
			if params != nil {
				style.apply(*params)
			}
			i += size
			continue
		}
		end := strings.IndexByte(body[i:], 0x1b)
		if end < 0 {
			end = len(body)
		} else {
			end += i
		}
		if end > keep {
			if err := style.write(w, body[max(i, keep):end]); err != nil {
				return err
			}
		}
		i = end
	}
	if strings.HasSuffix(line, "\n") {
		_, err := io.WriteString(w, "\n")
		return err
	}
	return nil
}

// escape measures the escape sequence at the start of s; params is set when it is an SGR sequence.
func escape(s string) (size int, params *string) {
	if len(s) < 2 {
		return len(s), nil
	}
	switch s[1] {
	case '[': // CSI: parameters, then one final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				if s[i] == 'm' {
					p := s[2:i]
					return i + 1, &p
				}
				return i + 1, nil
			}
			if s[i] < 0x20 || s[i] > 0x3f {
				return i, nil // broken off: what follows is text
			}
		}
		return len(s), nil
	case ']', 'P', 'X', '^', '_': // strings (window titles, links): until BEL or ST
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1, nil
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				return i + 2, nil
			}
		}
		return len(s), nil
	case '(', ')', '*', '+': // character sets
		return min(3, len(s)), nil
	}
	return 2, nil
}

// sgr is the state of a terminal's pen.
type sgr struct {
	colour                                       int // 1…8: palette index + 1; 0 is the default
	bold, dim, italic, underline, strike, invert bool
}

func (s *sgr) apply(params string) {
	codes := strings.FieldsFunc(params, func(r rune) bool { return r == ';' || r == ':' })
	if len(codes) == 0 {
		*s = sgr{}
		return
	}
	for i := 0; i < len(codes); i++ {
		n, err := strconv.Atoi(codes[i])
		if err != nil {
			return
		}
		switch {
		case n == 0:
			*s = sgr{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.dim = true
		case n == 3:
			s.italic = true
		case n == 4:
			s.underline = true
		case n == 7:
			s.invert = true
		case n == 9:
			s.strike = true
		case n == 22:
			s.bold, s.dim = false, false
		case n == 23:
			s.italic = false
		case n == 24:
			s.underline = false
		case n == 27:
			s.invert = false
		case n == 29:
			s.strike = false
		case n >= 30 && n <= 37:
			s.colour = n - 30 + 1
		case n >= 90 && n <= 97:
			s.colour = n - 90 + 1
		case n == 39:
			s.colour = 0
		case n == 38 || n == 48:
			skip, colour := extended(codes[i+1:])
			if n == 38 {
				s.colour = colour
			}
			i += skip
		}
	}
}

// extended reads the arguments of 38 and 48: a palette index or RGB, brought down to the eight colours
// that stay readable in both themes.
func extended(args []string) (used, colour int) {
	number := func(i int) int {
		if i >= len(args) {
			return 0
		}
		n, _ := strconv.Atoi(args[i])
		return n
	}
	switch {
	case len(args) >= 2 && args[0] == "5":
		n := number(1)
		switch {
		case n < 16:
			return 2, n%8 + 1
		case n < 232:
			n -= 16
			return 2, nearest(n/36*51, n/6%6*51, n%6*51)
		}
		return 2, 1 // the greys: muted
	case len(args) >= 4 && args[0] == "2":
		return 4, nearest(number(1), number(2), number(3))
	}
	return len(args), 0
}

// nearest is the palette index + 1 that an RGB colour is closest to in hue.
func nearest(r, g, b int) int {
	top, low := max(r, g, b), min(r, g, b)
	if top-low < 40 { // grey
		if top > 100 && top < 200 {
			return 1
		}
		return 0
	}
	middle := (top + low) / 2
	index := 0
	if r > middle {
		index |= 1
	}
	if g > middle {
		index |= 2
	}
	if b > middle {
		index |= 4
	}
	return index + 1
}

func (s sgr) write(w io.Writer, text string) error {
	if s == (sgr{}) {
		return visible(w, text)
	}
	var classes []string
	for _, c := range []struct {
		on   bool
		name string
	}{
		{s.bold, "a-b"}, {s.dim, "a-d"}, {s.italic, "a-i"}, {s.underline, "a-u"}, {s.strike, "a-s"}, {s.invert, "a-r"},
	} {
		if c.on {
			classes = append(classes, c.name)
		}
	}
	if s.colour > 0 && !s.invert { // a reversed colour is not sure to be readable
		classes = append(classes, "a-"+strconv.Itoa(s.colour-1))
	}
	if _, err := io.WriteString(w, `<span class="`+strings.Join(classes, " ")+`">`); err != nil {
		return err
	}
	if err := visible(w, text); err != nil {
		return err
	}
	_, err := io.WriteString(w, `</span>`)
	return err
}
