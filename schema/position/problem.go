package position

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Severity states whether a configuration with a problem can be used.
type Severity int

// The severities.
const (
	Error   Severity = iota // the configuration cannot be used
	Warning                 // the configuration can be used, but may have an unexpected effect
	Note                    // a part of the configuration is not known here, and so is not checked
)

// String returns error, warning or note.
func (s Severity) String() string { return [...]string{"error", "warning", "note"}[s] }

// Problem is one mistake in a configuration, with its position and how to fix it. It
// contains no value of the configuration, except harmless ones such as numbers and names.
type Problem struct {
	Severity Severity
	Rule     Rule
	File     string // as the caller named it; empty for a variable, or if there is no file
	Line     int    // from 1; 0 is unknown
	Column   int    // from 1, in characters; 0 is unknown
	Path     string // of the key, with dots; or the name of a variable
	Message  string // follows the path and a colon
	Hint     string // how to fix the problem; empty if the message states it

	// Value distinguishes problems that differ only in a value that is not shown.
	Value secret.String
}

// Excerpt is the part of a problem's line that may be shown. The zero value has no text.
type Excerpt struct {
	Text  string
	Caret string // white space as wide as the part of Text before the position
}

// NewError returns an error about the key or value at an origin. The path of the problem is the
// name of the variable if the origin is one.
func NewError(rule Rule, at Origin, path, message, hint string) Problem {
	return Problem{
		Severity: Error, Rule: rule, File: at.File, Line: at.Line, Column: at.Column,
		Path: cmp.Or(at.Variable, path), Message: message, Hint: hint,
	}
}

// NewWarning returns a warning about the key or value at an origin.
func NewWarning(rule Rule, at Origin, path, message, hint string) Problem {
	p := NewError(rule, at, path, message, hint)
	p.Severity = Warning
	return p
}

// String returns the problem in one line and its hint in a second line.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		for _, n := range []int{p.Line, p.Column} {
			if n > 0 {
				b.WriteString(":" + strconv.Itoa(n))
			}
		}
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("\n  hint: " + p.Hint)
	}
	return b.String()
}

// Problems are the problems of one configuration. [Problems.Sort] orders them: first
// problems of the whole file, then by position, then variables by name. Problems is an
// error whose message contains all of them.
type Problems []Problem

// maxProblems is the largest number of problems that are reported for one configuration,
// so that a log stays readable.
const maxProblems = 1000

// Limit keeps the first maxProblems problems, and replaces the others with one problem that
// states their number. The result contains an error if p does.
func (p Problems) Limit(file string) Problems {
	if len(p) <= maxProblems {
		return p
	}
	omitted := Problem{
		Severity: Warning, Rule: RuleSize, File: file,
		Message: fmt.Sprintf("there are %d more problems", len(p)-maxProblems),
		Hint:    "fix these first, and check again",
	}
	if len(p[maxProblems:].Errors()) > 0 {
		omitted.Severity = Error
	}
	return append(p[:maxProblems:maxProblems], omitted)
}

// Error returns all problems as text: one line for each problem, and one for each hint.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// Errors returns the problems of severity [Error].
func (p Problems) Errors() Problems { return p.ofSeverity(Error) }

// Warnings returns the problems of severity [Warning].
func (p Problems) Warnings() Problems { return p.ofSeverity(Warning) }

// Err returns [Problems.Errors] as an error, or nil if there are none.
func (p Problems) Err() error {
	if errs := p.Errors(); len(errs) > 0 {
		return errs
	}
	return nil
}

func (p Problems) ofSeverity(s Severity) Problems {
	var some Problems
	for _, problem := range p {
		if problem.Severity == s {
			some = append(some, problem)
		}
	}
	return some
}

// Sort sorts the problems in the order that [Problems] documents.
func (p Problems) Sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(variableLast(a), variableLast(b)),
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message),
		)
	})
}

// variableLast returns 0 for a problem of a file and 1 for a problem of a variable, so that
// problems of variables come last.
func variableLast(p Problem) int {
	if p.File == "" {
		return 1
	}
	return 0
}
