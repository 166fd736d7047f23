package report

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/position"
)

// GitHub writes each finding as a workflow command, which GitHub Actions shows next to
// the lines of a change
// (https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands).
func GitHub(w io.Writer, findings []Finding) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, f := range findings {
		command := f.Severity.String()
		if f.Severity == position.Note {
			command = "notice"
		}
		b.WriteString("::" + command + " ")
		if f.File != "" {
			b.WriteString("file=" + property.Replace(uncontrolled(filepath.ToSlash(inside(f.File)))) + ",")
		}
		if f.Line > 0 {
			fmt.Fprintf(&b, "line=%d,", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&b, "col=%d,", f.Column)
			}
		}
		what := position.Problem{Path: f.Path, Message: f.Message, Hint: f.Hint}.String()
		b.WriteString("title=" + property.Replace(string(f.Rule)) + "::" + data.Replace(what) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// uncontrolled returns a name with its control characters written as text, except those
// for which a workflow command has an escape.
func uncontrolled(name string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(name, string(utf8.RuneError)) {
		if unicode.IsControl(r) && r != '\n' && r != '\r' {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
