package schema

import (
	"bytes"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// page is the text of a file with its parsed form.
type page struct {
	whole []byte     // the text with its byte order mark
	text  []byte     // the text without byte order mark
	root  *yaml.Node // a mapping; nil if the document is empty
	lines []int      // offsets in text at which lines begin, as the parser counts them

	newline string // the characters at the end of a line, such as "\n"
}

func readPage(content []byte) (*page, error) {
	text, broken := position.CheckText("", content)
	if broken != nil {
		return nil, position.Problems{*broken}
	}
	p := &page{whole: content, text: text, newline: newlineOf(text)}
	documents, stopped := position.Decode("", text, 2)
	switch {
	case len(documents) > 1:
		return nil, notEdited(documents[1], "", "the file must be one document",
			"remove the line --- and everything after it")
	case stopped != nil:
		return nil, position.Problems{*stopped}
	case len(documents) == 0:
		return p, nil
	}
	root := documents[0].Content[0]
	switch {
	case root.Kind == yaml.MappingNode:
		p.root = root
	case root.Kind != yaml.ScalarNode || root.Value != "" || root.ShortTag() != "!!null":
		return nil, notEdited(root, "", "the file must be a mapping of keys to values", hintForMapping)
	}
	return p, nil
}

// pairs returns an iterator over the keys and values of the top level.
func (p *page) pairs() func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if p.root == nil {
			return
		}
		for i := 0; i+1 < len(p.root.Content); i += 2 {
			if !yield(p.root.Content[i], p.root.Content[i+1]) {
				return
			}
		}
	}
}

// flow reports whether the top level is in brackets.
func (p *page) flow() bool { return p.root != nil && p.root.Style&yaml.FlowStyle != 0 }

// indent returns the number of spaces before each key. It uses the smaller of two columns,
// because a question mark may precede the first key, and an anchor may precede the mapping.
func (p *page) indent() int { return min(p.root.Column, p.root.Content[0].Column) - 1 }

// end returns the offset after the last line of the document: the end of the text, or the
// beginning of a line with three dots.
func (p *page) end() int {
	p.findLines()
	for i, from := range p.lines {
		to := len(p.text)
		if i+1 < len(p.lines) {
			to = p.lines[i+1]
		}
		if after, ok := bytes.CutPrefix(p.text[from:to], []byte("...")); ok &&
			(len(after) == 0 || bytes.ContainsAny(after[:1], " \t\r\n")) {
			return from
		}
	}
	return len(p.text)
}

func endsLine(text []byte) bool {
	return len(text) > 0 && (text[len(text)-1] == '\n' || text[len(text)-1] == '\r')
}

// newlineOf returns the line ending of a text.
func newlineOf(text []byte) string {
	at := bytes.IndexByte(text, '\n')
	switch {
	case at > 0 && text[at-1] == '\r':
		return "\r\n"
	case at < 0 && bytes.IndexByte(text, '\r') >= 0:
		return "\r"
	default:
		return "\n"
	}
}

// findLines sets p.lines. For the parser, other characters than a line feed also end a line.
func (p *page) findLines() {
	if p.lines != nil {
		return
	}
	p.lines = []int{0}
	for i, r := range string(p.text) {
		ends := r == '\n' || r == '\u0085' || r == '\u2028' || r == '\u2029' ||
			r == '\r' && !bytes.HasPrefix(p.text[i+1:], []byte("\n"))
		if ends {
			p.lines = append(p.lines, i+utf8.RuneLen(r))
		}
	}
}

// offset returns the offset of a node in the text. The parser counts columns in characters.
func (p *page) offset(n *yaml.Node) int {
	p.findLines()
	if n.Line < 1 || n.Line > len(p.lines) {
		return len(p.text)
	}
	at := p.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(p.text[at:])
		at += size
	}
	return at
}
