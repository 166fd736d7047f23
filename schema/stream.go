package schema

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// part is one document of a file as it is written.
type part struct {
	content []byte
	before  int // lines
}

// split cuts a file where its documents begin. A parser that reads one after
// another stops at the first that is broken; here each has its own say. more is
// true if there are more than maxDocuments, which are left out.
func split(content []byte) (parts []part, more bool) {
	var now part
	line, bare := 0, true // bare: nothing yet but what may stand before a document
	end := func() {
		if !bare || len(parts) == 0 {
			parts = append(parts, now)
		}
		now, bare = part{before: line}, true
	}
	for text := range bytes.Lines(content) {
		if marks(text, "---") && !bare {
			end()
		}
		now.content = append(now.content, text...)
		trimmed := bytes.TrimSpace(text)
		if len(trimmed) > 0 && trimmed[0] != '#' && text[0] != '%' && !marks(text, "...") {
			bare = false
		}
		line++
		if marks(text, "...") {
			end()
		}
		if len(parts) > maxDocuments {
			return parts[:maxDocuments], true
		}
	}
	if end(); len(parts) > maxDocuments {
		return parts[:maxDocuments], true
	}
	return parts, false
}

// marks reports whether a line is a mark that begins or ends a document.
func marks(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// read parses the document. It is nil if there is none.
func (p part) read(file string) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(p.content))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = decoder.Decode(&second); errors.Is(err, io.EOF) {
			move(&first, p.before)
			return first.Content[0], nil
		}
	}
	problem := Problem{Rule: RuleSyntax, File: file, Line: second.Line, Column: second.Column, Message: "a second document begins without a line ---", Hint: "put --- between documents, in lines that end as the others do"}
	if err != nil {
		problem = explainSyntax(file, p.content, err)
	}
	problem.Line += p.before
	return nil, &problem
}

// move puts a tree further down the file.
func move(n *yaml.Node, lines int) {
	n.Line += lines
	for _, inner := range n.Content {
		move(inner, lines)
	}
}
