package report

import (
	"encoding/json"
	"io"
)

// document is the JSON of a report. An unknown number is 0 and a text that does not
// apply is empty; neither is left out. Version changes when readers of the previous
// version would misread the document.
type document struct {
	Version  int     `json:"version"`
	Problems []entry `json:"problems"`
}

type entry struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Path     string `json:"path"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

// JSON writes the findings as one JSON document.
func JSON(w io.Writer, findings []Finding) error {
	report := document{Version: 1, Problems: []entry{}}
	for _, f := range findings {
		report.Problems = append(report.Problems, entry{
			Severity: f.Severity.String(), Rule: string(f.Rule), File: f.File, Line: f.Line, Column: f.Column,
			Path: f.Path, Message: f.Message, Hint: f.Hint,
		})
	}
	return encode(w, report)
}

// encode writes a value as indented JSON.
func encode(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
