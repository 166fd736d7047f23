package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cmwa-project/cmwa/schema/position"
)

// vetFormats are the values of --format.
func vetFormats() []string { return []string{"text", "json", "sarif", "github"} }

// vetFormat returns what writes findings in a format.
func (s streams) vetFormat(name string) (func([]finding) error, bool) {
	switch name {
	case "text":
		environ := readEnvironment(s.environ)
		terminal := isTerminal(s.stdout)
		return func(all []finding) error {
			return writeText(s.stdout, all, terminal, terminal && environ["NO_COLOR"] == "" && environ["TERM"] != "dumb")
		}, true
	case "json":
		return func(all []finding) error { return writeJSON(s.stdout, jsonOf(all)) }, true
	case "sarif":
		return func(all []finding) error { return writeJSON(s.stdout, sarifOf(all)) }, true
	case "github":
		return func(all []finding) error { return writeGitHub(s.stdout, all) }, true
	default:
		return nil, false
	}
}

// quotedName returns a name as it may stand in a line: whatever would end the
// line, steer the terminal or be taken for what follows a name is in quotes.
func quotedName(name string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == ':' || r == '"' || r == utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, odd) || strings.TrimSpace(name) != name {
		return strconv.Quote(name)
	}
	return name
}

// writeText writes each problem as file:line:column: path: message. A person at a
// terminal also sees the line, as far as it is known to be harmless.
func writeText(w io.Writer, all []finding, excerpts, colours bool) error {
	paint := func(code, text string) string {
		if !colours || text == "" {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var b strings.Builder
	for _, f := range all {
		colour := "31" // red
		place := f.Problem
		place.Path, place.Message, place.Hint = "", "", ""
		if f.File != "" {
			place.File = quotedName(f.File)
			b.WriteString(paint("1", strings.TrimSuffix(place.String(), " ")) + " ")
		}
		if f.Severity == position.Warning {
			colour = "33" // yellow
			b.WriteString(paint(colour, "warning:") + " ")
		}
		what := position.Problem{Path: f.Path, Message: f.Message}
		b.WriteString(what.String() + "\n")
		if excerpts && f.excerpt.Text != "" {
			b.WriteString("    " + f.excerpt.Text + "\n    " + f.excerpt.Caret + paint(colour, "^") + "\n")
		}
		if f.Hint != "" {
			b.WriteString("  hint: " + f.Hint + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeJSON writes one document.
func writeJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

// vetReport is the format json. A number that is not known is 0, a text that does
// not apply is empty; neither is left out. Version grows when a reader of an
// earlier one would go wrong.
type vetReport struct {
	Version  int          `json:"version"`
	Problems []vetProblem `json:"problems"`
}

type vetProblem struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Path     string `json:"path"`
	Message  string `json:"message"`
	Hint     string `json:"hint"`
}

func jsonOf(all []finding) vetReport {
	report := vetReport{Version: 1, Problems: []vetProblem{}}
	for _, f := range all {
		report.Problems = append(report.Problems, vetProblem{
			Severity: f.Severity.String(), Rule: string(f.Rule), File: f.File, Line: f.Line, Column: f.Column,
			Path: f.Path, Message: f.Message, Hint: f.Hint,
		})
	}
	return report
}

// inside returns a path relative to the working directory, and an absolute one if
// the file is not below it.
func inside(path string) string {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return filepath.Clean(path)
	}
	working, err := filepath.Abs(".")
	if err != nil {
		return absolute
	}
	relative, err := filepath.Rel(working, absolute)
	if err != nil || relative == ".." || strings.HasPrefix(relative, ".."+string(filepath.Separator)) {
		return absolute
	}
	return relative
}

// isTerminal reports whether a person is at the other side of a stream.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
