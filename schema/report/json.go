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

// Problem is a [position.Problem] in JSON. A number that is unknown is 0 and a text that
// does not apply is empty; neither is omitted. The document of the agent's status has
// problems of this type too, so that both documents can be read in one way.
type Problem struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Path     string `json:"path"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

// NewProblem returns a problem in the form of JSON.
func NewProblem(p position.Problem) Problem {
	return Problem{
		Severity: p.Severity.String(), Rule: string(p.Rule), File: p.File, Line: p.Line, Column: p.Column,
		Path: p.Path, Message: p.Message, Hint: p.Hint,
	}
}

// String returns the same as [position.Problem.String].
func (p Problem) String() string {
	return position.Problem{
		File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message, Hint: p.Hint,
	}.String()
}

// NewDocument returns the findings as a document.
func NewDocument(findings []Finding) Document {
	d := Document{Version: 1, Problems: []Problem{}}
	for _, f := range findings {
		d.Problems = append(d.Problems, NewProblem(f.Problem))
	}
	return d
}

// encode writes a value as indented JSON.
func encode(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
