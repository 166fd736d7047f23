package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Severity says whether a configuration can be used in spite of a problem.
type Severity int

const (
	Error   Severity = iota // the configuration cannot be used
	Warning                 // it can, though perhaps not as its writer thinks
)

// String returns error or warning.
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Problem is one thing that a person should change. No part of it shows a value of
// the configuration, except harmless numbers and words.
type Problem struct {
	Severity Severity
	Rule     Rule
	File     string // as it was named; empty for a variable, and where there is no file
	Line     int    // from 1; 0 is unknown
	Column   int    // from 1, in characters; 0 is unknown
	Path     string // of the key, with dots; or the variable's name
	Message  string // completes "path: "
	Hint     string // what to write instead, if that is not the message itself

	// Value is set where an edit of a value that is not shown makes another problem
	// of it.
	Value secret.String
}

func warning(rule Rule, at Origin, path, message, hint string) Problem {
	return Problem{Severity: Warning, Rule: rule, File: at.File, Line: at.Line, Column: at.Column, Path: path, Message: message, Hint: hint}
}

// String returns the problem in one line, and its hint in a second one.
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

// mostProblems is how many problems of one configuration are told: more than anybody
// reads, and few enough for a log.
const mostProblems = 1000

// first leaves out what nobody would read, and says how much that is. What is left
// holds an error if the whole does.
func (p Problems) first(file string) Problems {
	if len(p) <= mostProblems {
		return p
	}
	rest := Problem{Severity: Warning, Rule: RuleSize, File: file, Message: fmt.Sprintf("there are %d more problems", len(p)-mostProblems), Hint: "mend the ones that are listed, and look again"}
	if len(p[mostProblems:].Errors()) > 0 {
		rest.Severity = Error
	}
	return append(p[:mostProblems:mostProblems], rest)
}

// Problems is what is wrong with one configuration, sorted: those of the file as
// a whole, then by position, then variables by name.
type Problems []Problem

// Error returns every problem, one after another.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return strings.Join(lines, "\n")
}

// Errors returns the problems that keep the configuration from use.
func (p Problems) Errors() Problems { return p.of(Error) }

// Warnings returns the problems in spite of which it can be used.
func (p Problems) Warnings() Problems { return p.of(Warning) }

// Err returns [Problems.Errors] as an error, and nil when there are none.
func (p Problems) Err() error {
	if errs := p.Errors(); len(errs) > 0 {
		return errs
	}
	return nil
}

func (p Problems) of(s Severity) Problems {
	var some Problems
	for _, problem := range p {
		if problem.Severity == s {
			some = append(some, problem)
		}
	}
	return some
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message),
		)
	})
}

// rank puts the file before the environment.
func rank(p Problem) int {
	if p.File == "" {
		return 1
	}
	return 0
}
