package markup

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/a-h/templ"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// Markdown renders what an agent wrote. Raw HTML in it is shown as the text it is, images become links to
// them (a page never loads what a transcript names), headings step down below the page's own. The result
// goes through an allowlist after rendering: no script, no style, no id, no attribute that htmx reads.
func Markdown(source string) templ.Component {
	converter := markdown
	switch {
	case len(source) > maxMarkdown:
		return verbatim(source)
	case widestLine(source)*strings.Count(source, "\n") > maxTableCells:
		converter = withoutTables
	}
	var out bytes.Buffer
	if err := converter.Convert([]byte(source), &out); err != nil {
		return verbatim(source) // a renderer that gives up: the text itself
	}
	return templ.Raw(policy.Sanitize(out.String()))
}

// What a text may cost. Some Markdown takes time with the square of its length, and a table's short rows are
// filled up to its widest: 64 kB of text became 100 MB of HTML.
const (
	maxMarkdown   = 16 << 10 // bytes of one text that is parsed; a longer one is shown as it is
	maxTableCells = 20_000   // lines × columns past which tables are not made
)

// verbatim shows text as it is.
func verbatim(source string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		if _, err := io.WriteString(w, "<pre><code>"); err != nil {
			return err
		}
		if err := visible(w, source); err != nil {
			return err
		}
		_, err := io.WriteString(w, "</code></pre>")
		return err
	})
}

// widestLine is the largest number of column marks in a line.
func widestLine(source string) (most int) {
	for line := range strings.Lines(source) {
		most = max(most, strings.Count(line, "|"))
	}
	return most
}

// Blocks cuts Markdown where a new top-level block surely begins, so that a text that grows needs only its
// last block rendered again: at a line that follows a blank one, is not indented, continues no list and
// stands in no fence. Joined, the blocks are the source.
func Blocks(source string) []string {
	var blocks []string
	start, blank, fence, pos := 0, false, "", 0
	for line := range strings.Lines(source) {
		text := strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimLeft(text, " ")
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) && strings.Trim(trimmed, fence[:1]) == "" {
				fence = ""
			}
			blank = false
		case strings.TrimSpace(text) == "":
			blank = true
		default:
			if blank && trimmed == text && !strings.HasPrefix(text, "\t") && !listItem.MatchString(text) && pos > start {
				blocks = append(blocks, source[start:pos])
				start = pos
			}
			blank = false
			if mark := fenceMark.FindString(trimmed); mark != "" {
				fence = mark
			}
		}
		pos += len(line)
	}
	if start < len(source) {
		blocks = append(blocks, source[start:])
	}
	return blocks
}

var (
	listItem  = regexp.MustCompile(`^([-*+]|\d{1,9}[.)])([ \t]|$)`)
	fenceMark = regexp.MustCompile("^(`{3,}|~{3,})")
)

var (
	markdown      = newMarkdown(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute)))
	withoutTables = newMarkdown()
)

func newMarkdown(more ...goldmark.Extender) goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(append(more, extension.Strikethrough, extension.Linkify, extension.TaskList)...),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(nodes{}, 100))),
	)
}

// policy is the allowlist. It is applied to what goldmark made, never to the source.
var policy = func() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "del", "code", "pre", "blockquote",
		"ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "span")
	p.AllowAttrs("start").Matching(regexp.MustCompile(`^\d{1,9}$`)).OnElements("ol")
	p.AllowAttrs("align").Matching(regexp.MustCompile(`^(left|right|center)$`)).OnElements("th", "td")
	p.AllowAttrs("class").Matching(regexp.MustCompile(`^c-[kscnfe]$`)).OnElements("span")
	p.AllowAttrs("href").OnElements("a")
	p.AllowURLSchemes("http", "https", "mailto")
	p.RequireParseableURLs(true)
	p.AllowRelativeURLs(false) // a path in a transcript is a file on a machine, not a page of this console
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	p.AddTargetBlankToFullyQualifiedLinks(true)
	return p
}()

// nodes renders the kinds of nodes that the console treats differently from a web page.
type nodes struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (nodes) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindRawHTML, rawHTML)
	r.Register(ast.KindHTMLBlock, htmlBlock)
	r.Register(ast.KindImage, image)
	r.Register(ast.KindHeading, heading)
	r.Register(ast.KindFencedCodeBlock, fencedCode)
	r.Register(ast.KindCodeBlock, fencedCode)
	r.Register(east.KindTaskCheckBox, checkBox)
}

func rawHTML(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		segments := node.(*ast.RawHTML).Segments
		for i := range segments.Len() {
			segment := segments.At(i)
			_ = visible(w, string(segment.Value(source))) // w keeps its first error, as bufio does
		}
	}
	return ast.WalkSkipChildren, nil
}

func htmlBlock(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	block := node.(*ast.HTMLBlock)
	text := lines(block, source)
	if block.HasClosure() {
		text += string(block.ClosureLine.Value(source))
	}
	_, _ = w.WriteString("<pre><code>")
	_ = visible(w, text)
	_, _ = w.WriteString("</code></pre>\n")
	return ast.WalkContinue, nil
}

func lines(node ast.Node, source []byte) string {
	var text strings.Builder
	for i := range node.Lines().Len() {
		segment := node.Lines().At(i)
		text.Write(segment.Value(source))
	}
	return text.String()
}

func image(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	img := node.(*ast.Image)
	_, _ = w.WriteString(`<a href="`)
	_, _ = w.Write(util.EscapeHTML(util.URLEscape(img.Destination, true)))
	_, _ = w.WriteString(`">image: `)
	_ = visible(w, plainText(img, source))
	_, _ = w.WriteString("</a>")
	return ast.WalkSkipChildren, nil
}

func plainText(node ast.Node, source []byte) string {
	var text strings.Builder
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			text.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return text.String()
}

func heading(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	level := strconv.Itoa(min(6, node.(*ast.Heading).Level+2))
	if entering {
		_, _ = w.WriteString("<h" + level + ">")
	} else {
		_, _ = w.WriteString("</h" + level + ">\n")
	}
	return ast.WalkContinue, nil
}

func fencedCode(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	text := lines(node, source)
	_, _ = w.WriteString("<pre><code>")
	var language string
	if fenced, ok := node.(*ast.FencedCodeBlock); ok {
		language = string(fenced.Language(source))
	}
	if language != "" {
		for _, line := range codeLines(lexers.Get(language), text) {
			for _, token := range line {
				_ = writeToken(w, token.Type, token.Value)
			}
		}
	} else {
		_ = visible(w, text)
	}
	_, _ = w.WriteString("</code></pre>\n")
	return ast.WalkContinue, nil
}

func checkBox(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		if node.(*east.TaskCheckBox).IsChecked {
			_, _ = w.WriteString("☑ ")
		} else {
			_, _ = w.WriteString("☐ ")
		}
	}
	return ast.WalkContinue, nil
}
