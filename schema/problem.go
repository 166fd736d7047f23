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

// Rule is the stable name of what a problem breaks.
type Rule string

// The rules.
const (
	RuleSyntax          Rule = "syntax"           // not YAML, or not one mapping
	RuleSize            Rule = "size"             // larger than MaxFile, or unfolds to too much
	RuleDuplicateKey    Rule = "duplicate-key"    // a key set twice in one mapping
	RuleUnknownKey      Rule = "unknown-key"      // a key that the schema does not know
	RuleUnknownVariable Rule = "unknown-variable" // a PULUMI_AGENT_ variable that the schema does not know
	RuleOldName         Rule = "old-name"         // a name of earlier releases, of a key or a file
	RuleOverlaid        Rule = "overlaid"         // a key of the file that a variable hides
	RuleUnused          Rule = "unused"           // a setting without effect
	RuleValue           Rule = "value"            // a value of the wrong kind or out of bounds
	RuleMissingToken    Rule = "missing-token"    // no credentials at all
	RuleCredentials     Rule = "credentials"      // credentials that contradict each other or are incomplete
	RuleFile            Rule = "file"             // a file that the configuration names cannot be used
	RuleMissingFile     Rule = "missing-file"     // a file that the configuration names is not there, or not for this user
	RulePlaceholder     Rule = "placeholder"      // a token that is no real one
	RuleReadableToken   Rule = "readable-token"   // a token in a file that others may read
	RulePools           Rule = "pools"            // pools that do not go together
	RulePollRate        Rule = "poll-rate"        // all pools together ask the service very often
	RuleTimes           Rule = "times"            // durations that do not fit together
	RuleRelease         Rule = "release"          // a setting that this release cannot carry out
	RuleInternal        Rule = "internal"         // a fault of the schema itself
)

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

// Strict returns the problems as they weigh where a file is checked and nothing
// runs: a key that is not known is an error, also where it resembles none that is;
// so is a variable in a manifest that resembles a known one; what this release
// cannot carry out is a warning, as another may run the agent;
// and what the machine of the agent may have, and this one need not, is none.
func (p Problems) Strict() Problems {
	strict := p.elsewhere()
	for i := range strict {
		switch strict[i].Rule {
		case RuleUnknownKey:
			strict[i].Severity = Error
		case RuleUnknownVariable:
			if strict[i].File != "" && strict[i].Hint != "" {
				strict[i].Severity = Error
			}
		case RuleRelease:
			strict[i].Severity = Warning
		}
	}
	return strict
}

// elsewhere returns the problems as they weigh on a machine that is not the
// agent's. The lack of a token at the top level is a warning, because it may come
// from the environment that the agent will run in; so is the lack of the Pod
// template; and no word is lost on the lack of files of tokens and certificates,
// which lie on the agent's machine only.
func (p Problems) elsewhere() Problems {
	var rest Problems
	for _, problem := range p {
		switch problem.Rule {
		case RuleMissingToken:
			if !strings.HasPrefix(problem.Path, "pools.") {
				problem.Severity = Warning
			}
		case RuleMissingFile:
			if !strings.HasSuffix(problem.Path, "pod_template_file") {
				continue
			}
			problem.Severity = Warning
		}
		rest = append(rest, problem)
	}
	return rest
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
