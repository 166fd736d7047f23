package position

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxDocuments is the largest number of documents that Split returns.
const MaxDocuments = 1_000

// Document is the text of one document of a file.
type Document struct {
	content     []byte
	linesBefore int // number of lines before the document
}

// Split divides the text of a file into its documents, so that a syntax error in one
// document does not prevent the checks of the other documents. It returns at most
// [MaxDocuments] documents. more is true if the file has more.
func Split(content []byte) (documents []Document, more bool) {
	var current Document
	line, withoutContent := 0, true // withoutContent: so far only comments, directives and empty lines
	endDocument := func() {
		if !withoutContent || len(documents) == 0 {
			documents = append(documents, current)
		}
		current, withoutContent = Document{linesBefore: line}, true
	}
	for text := range bytes.Lines(content) {
		if hasMark(text, "---") && !withoutContent {
			endDocument()
		}
		current.content = append(current.content, text...)
		trimmed := bytes.TrimSpace(text)
		if len(trimmed) > 0 && trimmed[0] != '#' && text[0] != '%' && !hasMark(text, "...") {
			withoutContent = false
		}
		line++
		if hasMark(text, "...") {
			endDocument()
		}
		if len(documents) > MaxDocuments {
			return documents[:MaxDocuments], true
		}
	}
	if endDocument(); len(documents) > MaxDocuments {
		return documents[:MaxDocuments], true
	}
	return documents, false
}

// hasMark reports whether a line is a mark that begins or ends a document.
func hasMark(line []byte, mark string) bool {
	after, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(after) == 0 || strings.ContainsRune(" \t\r\n", rune(after[0])))
}

// Read parses the document and returns its root, with lines counted from the
// beginning of the file. The root is nil if the document is empty.
func (d Document) Read(file string) (*yaml.Node, *Problem) {
	documents, problem := Decode(file, d.content, 2)
	if len(documents) > 1 {
		second := documents[1]
		problem = &Problem{Rule: RuleSyntax, File: file, Line: second.Line, Column: second.Column,
			Message: "a second document begins without a line ---",
			Hint:    "put a line --- between documents, with the same line ending as other lines"}
	}
	switch {
	case problem != nil:
		problem.Line += d.linesBefore
		return nil, problem
	case len(documents) == 0:
		return nil, nil
	}
	shiftLines(documents[0], d.linesBefore)
	return documents[0].Content[0], nil
}

// shiftLines adds a number to the lines of a node and of all nodes below it.
func shiftLines(n *yaml.Node, lines int) {
	n.Line += lines
	for _, inner := range n.Content {
		shiftLines(inner, lines)
	}
}
