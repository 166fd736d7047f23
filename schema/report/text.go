package report

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/position"
)

// QuoteName returns the name of a file for a line of text. The name is in quotes if it
// would end the line, control the terminal or hide where the name ends.
func QuoteName(name string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ':' || r == '"' || r == utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, odd) || strings.TrimSpace(name) != name {
		return strconv.Quote(name)
	}
	return name
}

// Printable returns a text with a question mark in place of each character that could end
// a line or control a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Text writes each finding as file:line:column: path: message, and its hint on a separate
// line. A warning has warning: before the path. With excerpts, Text also writes the excerpt
// of the line, with a caret. With colours, it adds escape sequences of the terminal.
func Text(w io.Writer, findings []Finding, excerpts, colours bool) error {
	paint := func(code, text string) string {
		if !colours || text == "" {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var b strings.Builder
	for _, f := range findings {
		colour := "31" // red
		place := f.Problem
		place.Path, place.Message, place.Hint = "", "", ""
		if f.File != "" {
			place.File = QuoteName(f.File)
			b.WriteString(paint("1", strings.TrimSuffix(place.String(), " ")) + " ")
		}
		if f.Severity == position.Warning {
			colour = "33" // yellow
			b.WriteString(paint(colour, "warning:") + " ")
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
