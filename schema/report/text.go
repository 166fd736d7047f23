package report

import (
	"io"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Text writes each finding as file:line:column: path: message, and its hint on a separate
// line. Before the path, a warning has warning:, and a note has note:. With excerpts, Text
// also writes the excerpt of the line, with a caret. With colours, it adds escape sequences
// of the terminal.
func Text(w io.Writer, findings []Finding, excerpts, colours bool) error {
	paint := func(colour printable.Colour, text string) string {
		if !colours {
			return text
		}
		return colour.Paint(text)
	}
	var b strings.Builder
	for _, f := range findings {
		colour := printable.Red
		place := f.Problem
		place.Path, place.Message, place.Hint = "", "", ""
		if f.File != "" {
			place.File = printable.QuoteName(f.File)
			b.WriteString(paint(printable.Bold, strings.TrimSuffix(place.String(), " ")) + " ")
		}
		switch f.Severity {
		case position.Warning:
			colour = printable.Yellow
			b.WriteString(paint(colour, "warning:") + " ")
		case position.Note:
			colour = printable.Cyan
			b.WriteString(paint(colour, "note:") + " ")
		}
		what := position.Problem{Path: f.Path, Message: f.Message}
		b.WriteString(what.String() + "\n")
		if excerpts && f.Excerpt.Text != "" {
			b.WriteString("    " + f.Excerpt.Text + "\n    " + f.Excerpt.Caret + paint(colour, "^") + "\n")
		}
		if f.Hint != "" {
			b.WriteString("  hint: " + f.Hint + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
