package position

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxDocuments is the largest number of documents that Split returns.
const MaxDocuments = 1_000

// Document is one document of a file with several, as text.
type Document struct {
	content []byte
	before  int // lines of the file before the document
}

// Split cuts a file where its documents begin, so that a syntax error in one of them
// does not hide the others, as it would with a parser of the whole file. It returns
// at most [MaxDocuments]; more reports whether the file has more.
func Split(content []byte) (documents []Document, more bool) {
	var now Document
	line, bare := 0, true // bare: so far only comments, directives and empty lines
	end := func() {
		if !bare || len(documents) == 0 {
			documents = append(documents, now)
		}
		now, bare = Document{before: line}, true
	}
	for text := range bytes.Lines(content) {
		if hasMark(text, "---") && !bare {
			end()
		}
		now.content = append(now.content, text...)
		trimmed := bytes.TrimSpace(text)
		if len(trimmed) > 0 && trimmed[0] != '#' && text[0] != '%' && !hasMark(text, "...") {
			bare = false
		}
		line++
		if hasMark(text, "...") {
			end()
		}
		if len(documents) > MaxDocuments {
			return documents[:MaxDocuments], true
		}
	}
	if end(); len(documents) > MaxDocuments {
		return documents[:MaxDocuments], true
	}
	return documents, false
}

// hasMark reports whether a line begins with a mark, which begins or ends a document.
func hasMark(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// Read parses the document and returns its root, with lines counted from the
// beginning of the file. The root is nil if the document is empty.
func (d Document) Read(file string) (*yaml.Node, *Problem) {
	documents, problem := Decode(file, d.content, 2)
	if len(documents) > 1 {
		second := documents[1]
		problem = &Problem{Rule: RuleSyntax, File: file, Line: second.Line, Column: second.Column,
			Message: "a second document begins without a line ---",
			Hint:    "put --- between documents, in lines that end as the others do"}
	}
	switch {
	case problem != nil:
		problem.Line += d.before
		return nil, problem
	case len(documents) == 0:
		return nil, nil
	}
	move(documents[0], d.before)
	return documents[0].Content[0], nil
}

// move adds to the lines of a tree.
func move(n *yaml.Node, lines int) {
	n.Line += lines
	for _, inner := range n.Content {
		move(inner, lines)
	}
}
