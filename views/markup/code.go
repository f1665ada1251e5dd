package markup

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/a-h/templ"
	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
)

// maxHighlighted is the size in bytes past which code is shown in one colour: colouring is a comfort, and
// its cost must not grow with what a machine prints.
const maxHighlighted = 64 << 10

// Code renders a file as numbered lines (ids L1, L2, …), coloured by the language its name suggests.
func Code(name, text string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		if _, err := io.WriteString(w, `<div class="file"><table><tbody>`); err != nil {
			return err
		}
		for i, line := range codeLines(lexers.Match(name), text) {
			if _, err := fmt.Fprintf(w, `<tr id="L%d"><td class="no"><a href="#L%d">%d</a></td><td>`, i+1, i+1, i+1); err != nil {
				return err
			}
			if err := writeTokens(w, line); err != nil {
				return err
			}
			if _, err := io.WriteString(w, "</td></tr>"); err != nil {
				return err
			}
		}
		_, err := io.WriteString(w, "</tbody></table></div>")
		return err
	})
}

// codeLines splits text into lines of tokens. Without a lexer, or when the text is too long or the lexer
// gives up, each line is one plain token.
func codeLines(lexer chroma.Lexer, text string) [][]chroma.Token {
	if lexer != nil && len(text) <= maxHighlighted {
		if tokens, err := chroma.Tokenise(chroma.Coalesce(lexer), nil, text); err == nil {
			return chroma.SplitTokensIntoLines(tokens)
		}
	}
	var lines [][]chroma.Token
	for line := range strings.Lines(text) {
		lines = append(lines, []chroma.Token{{Type: chroma.Text, Value: line}})
	}
	return lines
}

func writeTokens(w io.Writer, line []chroma.Token) error {
	for i, token := range line {
		value := token.Value
		if i == len(line)-1 {
			value = strings.TrimSuffix(strings.TrimSuffix(value, "\n"), "\r")
		}
		if err := writeToken(w, token.Type, value); err != nil {
			return err
		}
	}
	return nil
}

func writeToken(w io.Writer, kind chroma.TokenType, value string) error {
	class := tokenClass(kind)
	if class == "" || value == "" {
		return visible(w, value)
	}
	if _, err := io.WriteString(w, `<span class="`+class+`">`); err != nil {
		return err
	}
	if err := visible(w, value); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</span>")
	return err
}

// tokenClass reduces a lexer's kinds to six that a reader can tell apart: c-k keyword, c-s string,
// c-c comment, c-n number, c-f name that is defined or called, c-e removed or wrong.
func tokenClass(kind chroma.TokenType) string {
	switch {
	case kind.InCategory(chroma.Keyword):
		return "c-k"
	case kind.InCategory(chroma.Comment):
		return "c-c"
	case kind.InSubCategory(chroma.LiteralString), kind == chroma.GenericInserted:
		return "c-s"
	case kind.InSubCategory(chroma.LiteralNumber):
		return "c-n"
	case kind == chroma.NameFunction, kind == chroma.NameClass, kind == chroma.NameTag, kind == chroma.NameAttribute:
		return "c-f"
	case kind == chroma.GenericDeleted, kind == chroma.GenericError:
		return "c-e"
	}
	return ""
}
