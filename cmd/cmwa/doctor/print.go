package doctor

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxText is the length in bytes at which a text in an outcome is cut.
const maxText = 1000

// token matches texts with the prefix of access tokens or JSON Web Tokens.
var token = regexp.MustCompile(`(pul-|eyJ)[A-Za-z0-9_.-]{8,}`)

// userOfURL matches the user and the password in a URL in an error message, such as the URL
// of a proxy. If the URL is in quotes, user and password may contain spaces.
var userOfURL = regexp.MustCompile(`("[A-Za-z0-9+.-]+://)[^/"]*@|([A-Za-z0-9+.-]+://)[^/\s"]*@`)

// shown returns a text as one line of limited length, without tokens, passwords in
// URLs, or control characters.
func shown(text string) string {
	text = token.ReplaceAllString(printable.OneLine(text), secret.Mark)
	text = userOfURL.ReplaceAllString(text, "${1}${2}"+secret.Mark+"@")
	return printable.Shorten(text, maxText)
}

// Output describes how the outcomes are printed.
type Output struct {
	Text     io.Writer
	JSON     bool   // one [Document] instead of one line per check
	Colours  bool   // in lines
	Version  string // of the program, for the Document
	Progress io.Writer
	Terminal bool // Progress is a terminal: print slow checks there, and without JSON a summary
}

// Report runs the checks and prints their outcomes. It reports whether no check has
// failed and ctx has not ended.
func Report(ctx context.Context, checks []Check, to Output) (passed bool, err error) {
	var outcomes []Outcome
	lines := newPrinter(to.Text, checks, to.Colours)
	passed = Run(ctx, checks, Reporter{
		Outcome: func(o Outcome) {
			outcomes = append(outcomes, o)
			if !to.JSON && err == nil {
				err = lines.print(o)
			}
		},
		Waiting: func(left []Check) {
			if to.Terminal {
				fmt.Fprintf(to.Progress, "cmwa: waiting for %s\n", names(left))
			}
		},
	})

	if to.JSON {
		err = report.WriteJSON(to.Text, documentOf(to.Version, outcomes, passed))
	} else if to.Terminal {
		fmt.Fprintln(to.Progress, summary(outcomes))
	}
	if err != nil {
		return false, fmt.Errorf("write the outcomes: %w", err)
	}
	return passed, nil
}

// Document is the result of cmwa doctor as JSON, for other programs.
type Document struct {
	Version int             `json:"version"` // incremented when older readers would misread the Document
	Program string          `json:"program"` // version of cmwa
	Passed  bool            `json:"passed"`  // no check has failed, and the run was not interrupted
	Checks  []DocumentCheck `json:"checks"`  // always in the same order
}

// DocumentCheck is one check in a [Document].
type DocumentCheck struct {
	Name     string          `json:"name"`
	Pool     string          `json:"pool,omitempty"` // empty for checks of the agent
	Result   selfcheck.Level `json:"result"`         // ok, warning, failed or skipped
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"` // empty if there is none, or if message contains it
	Duration float64         `json:"duration"`       // in seconds
}

func documentOf(program string, outcomes []Outcome, passed bool) Document {
	document := Document{Version: 1, Program: program, Passed: passed, Checks: []DocumentCheck{}}
	for _, o := range outcomes {
		document.Checks = append(document.Checks, DocumentCheck{
			Name: o.Name, Pool: o.Pool, Result: o.Level, Message: o.Message, Hint: o.Hint,
			Duration: o.Duration.Round(time.Millisecond).Seconds(),
		})
	}
	return document
}

// printer prints one line per outcome.
type printer struct {
	to      io.Writer
	colours bool
	pools   bool // there are several pools
	name    int  // width of the column
	pool    int  // width of the column
}

func newPrinter(to io.Writer, checks []Check, colours bool) *printer {
	p := &printer{to: to, colours: colours}
	first := ""
	for _, c := range checks {
		p.name, p.pool = max(p.name, len(c.Name)), max(p.pool, len(printable.Text(c.Pool)))
		if c.Pool != "" && first == "" {
			first = c.Pool
		}
		p.pools = p.pools || c.Pool != "" && c.Pool != first
	}
	return p
}

// colours has the colour of each level, as in cmwa vet.
var colours = map[selfcheck.Level]printable.Colour{
	selfcheck.LevelOK: printable.Green, selfcheck.LevelWarning: printable.Yellow,
	selfcheck.LevelFailed: printable.Red, selfcheck.LevelSkipped: printable.Faint,
}

func (p *printer) print(o Outcome) error {
	level := fmt.Sprintf("%-7s", o.Level)
	if p.colours {
		level = colours[o.Level].Paint(level)
	}
	line := level + "  "
	if p.pools {
		line += fmt.Sprintf("%-*s  ", p.pool, printable.Text(o.Pool))
	}
	line += fmt.Sprintf("%-*s  %s", p.name, o.Name, o.Message)
	if o.Hint != "" {
		line += "; hint: " + o.Hint
	}
	_, err := fmt.Fprintln(p.to, line)
	return err
}

func summary(outcomes []Outcome) string {
	count := map[selfcheck.Level]int{}
	for _, o := range outcomes {
		count[o.Level]++
	}
	text := fmt.Sprintf("%d checks: %d ok", len(outcomes), count[selfcheck.LevelOK])
	for _, level := range []selfcheck.Level{selfcheck.LevelWarning, selfcheck.LevelFailed, selfcheck.LevelSkipped} {
		if count[level] > 0 {
			text += fmt.Sprintf(", %d %s", count[level], level)
		}
	}
	return text
}
