package doctor

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/report"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxText limits a text of an outcome, in bytes.
const maxText = 1000

// token matches what begins as access tokens and JSON Web Tokens do.
var token = regexp.MustCompile(`(pul-|eyJ)[A-Za-z0-9_.-]{8,}`)

// printable returns a text as one line of limited length, without tokens and without
// characters that control a terminal.
func printable(text string) string {
	text = report.Printable(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	text = token.ReplaceAllString(text, secret.Mark)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " …"
	}
	return text
}

// Document is the result of cmwa doctor for programs.
type Document struct {
	Version int             `json:"version"` // grows when a reader of an earlier version would read the Document wrong
	Program string          `json:"program"` // version of cmwa
	Passed  bool            `json:"passed"`  // no check has failed
	Checks  []DocumentCheck `json:"checks"`  // always in the same order
}

// DocumentCheck is one check in a [Document].
type DocumentCheck struct {
	Name     string             `json:"name"`
	Pool     string             `json:"pool,omitempty"` // empty is the agent as a whole
	Result   runtime.CheckLevel `json:"result"`         // ok, warning, failed or skipped
	Message  string             `json:"message"`
	Cure     string             `json:"cure,omitempty"` // empty if nothing is to be done, or if message ends with it
	Duration float64            `json:"duration"`       // in seconds
}

// NewDocument returns the document of a run.
func NewDocument(program string, outcomes []Outcome, passed bool) Document {
	document := Document{Version: 1, Program: program, Passed: passed, Checks: []DocumentCheck{}}
	for _, o := range outcomes {
		document.Checks = append(document.Checks, DocumentCheck{
			Name: o.Name, Pool: o.Pool, Result: o.Level, Message: o.Message, Cure: o.Cure,
			Duration: o.Duration.Round(time.Millisecond).Seconds(),
		})
	}
	return document
}

// Printer prints outcomes for people, each in a line of its own.
type Printer struct {
	to      io.Writer
	colours bool
	pools   bool // there are pools to tell apart
	name    int  // width of the column
	pool    int  // width of the column
}

// NewPrinter returns a printer for the outcomes of these checks.
func NewPrinter(to io.Writer, checks []Check, colours bool) *Printer {
	p := &Printer{to: to, colours: colours}
	first := ""
	for _, c := range checks {
		p.name, p.pool = max(p.name, len(c.Name)), max(p.pool, len(report.Printable(c.Pool)))
		if c.Pool != "" && first == "" {
			first = c.Pool
		}
		p.pools = p.pools || c.Pool != "" && c.Pool != first
	}
	return p
}

// colourOf are the colours of levels: those of cmwa vet, and green.
var colourOf = map[runtime.CheckLevel]string{
	runtime.CheckOK: "32", runtime.CheckWarning: "33", runtime.CheckFailed: "31", runtime.CheckSkipped: "2",
}

// Print prints an outcome.
func (p *Printer) Print(o Outcome) error {
	level := fmt.Sprintf("%-7s", o.Level)
	if p.colours {
		level = "\x1b[" + colourOf[o.Level] + "m" + level + "\x1b[0m"
	}
	line := level + "  "
	if p.pools {
		line += fmt.Sprintf("%-*s  ", p.pool, report.Printable(o.Pool))
	}
	line += fmt.Sprintf("%-*s  %s", p.name, o.Name, o.Message)
	if o.Cure != "" {
		line += "; cure: " + o.Cure
	}
	_, err := fmt.Fprintln(p.to, line)
	return err
}

// Summary returns how many outcomes there are of each level.
func Summary(outcomes []Outcome) string {
	count := map[runtime.CheckLevel]int{}
	for _, o := range outcomes {
		count[o.Level]++
	}
	text := fmt.Sprintf("%d checks: %d ok", len(outcomes), count[runtime.CheckOK])
	for _, level := range []runtime.CheckLevel{runtime.CheckWarning, runtime.CheckFailed, runtime.CheckSkipped} {
		if count[level] > 0 {
			text += fmt.Sprintf(", %d %s", count[level], level)
		}
	}
	return text
}
