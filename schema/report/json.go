package report

import (
	"encoding/json"
	"io"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Document is the JSON of a report. Version changes when readers of the previous
// version would misread the document.
type Document struct {
	Version  int       `json:"version"`
	Problems []Problem `json:"problems"`
}

// Problem is a [position.Problem] in JSON. Line and Column start at 1 and are omitted if
// they are unknown. A string that does not apply is empty, not omitted. The status document
// of the agent also contains problems of this type, so that programs can parse both documents
// in the same way.
type Problem struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Path     string `json:"path"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

// NewProblem returns a problem in the form of a JSON document.
func NewProblem(p position.Problem) Problem {
	return Problem{
		Severity: p.Severity.String(), Rule: string(p.Rule), File: p.File, Line: p.Line, Column: p.Column,
		Path: p.Path, Message: p.Message, Hint: p.Hint,
	}
}

// Position returns the problem from which [NewProblem] made this one.
func (p Problem) Position() position.Problem {
	original := position.Problem{
		Rule: position.Rule(p.Rule), File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message,
		Hint: p.Hint,
	}
	if p.Severity == position.Warning.String() {
		original.Severity = position.Warning
	}
	return original
}

// String returns the same as [position.Problem.String].
func (p Problem) String() string { return p.Position().String() }

// NewDocument returns the findings as a document. The document of no findings has an
// empty list of problems, not null.
func NewDocument(findings []Finding) Document {
	d := Document{Version: 1, Problems: []Problem{}}
	for _, f := range findings {
		d.Problems = append(d.Problems, NewProblem(f.Problem))
	}
	return d
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
