package schema

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxDocuments is the largest number of documents in a file of manifests.
const maxDocuments = 1_000

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

// read parses the document and returns its root, which is nil if the document is
// empty.
func (p part) read(file string) (*yaml.Node, *Problem) {
	documents, problem := Decode(file, p.content, 2)
	if len(documents) > 1 {
		second := documents[1]
		problem = &Problem{Rule: RuleSyntax, File: file, Line: second.Line, Column: second.Column,
			Message: "a second document begins without a line ---", Hint: "put --- between documents, in lines that end as the others do"}
	}
	switch {
	case problem != nil:
		problem.Line += p.before
		return nil, problem
	case len(documents) == 0:
		return nil, nil
	}
	move(documents[0], p.before)
	return documents[0].Content[0], nil
}

// move puts a tree further down the file.
func move(n *yaml.Node, lines int) {
	n.Line += lines
	for _, inner := range n.Content {
		move(inner, lines)
	}
}
