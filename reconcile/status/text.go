package status

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// WriteText writes a Document for people, in lines of at most 80 columns. A longer line has one long
// text without spaces, such as the URL of a service or of a job. Times are relative to the agent's
// clock. With colours, it adds escape sequences of the terminal.
func WriteText(w io.Writer, d Document, colours bool) error {
	var b strings.Builder
	for _, l := range lines(d, relativeTo(d.Now)) {
		b.WriteString(paint(l.text, colours) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Redraw overwrites the previous Document on a terminal, with as many lines as fit.
// Height is the number of lines of the terminal, or 0 if it is unknown. Lost is the error if
// the agent does not respond at present, and otherwise nil. Colours are those of WriteText.
func Redraw(w io.Writer, d Document, lost error, height int, colours bool) error {
	all := lines(d, relativeTo(d.Now))
	if lost != nil {
		all = append(paragraph("lost", "lost", lost.Error()), all...)
	}
	all = breakLines(all)
	if height > 2 && len(all) >= height {
		hidden := len(all) - height + 2
		all = append(all[:height-2], line{"more", fmt.Sprintf("... and %d more lines", hidden)})
	}
	var b strings.Builder
	b.WriteString("\x1b[H") // to the top left
	for _, l := range all {
		b.WriteString(paint(l.text, colours) + "\x1b[K\n") // clear to the end of the line
	}
	b.WriteString("\x1b[J") // clear to the end of the screen
	_, err := io.WriteString(w, b.String())
	return err
}

// paints are the parts of lines that have a colour.
var paints = printable.Paints{
	{Part: regexp.MustCompile(`^agent +healthy, ready`), Colour: printable.Green},
	{Part: regexp.MustCompile(`UNHEALTHY|NOT READY|REJECTED|STUCK|problem:`), Colour: printable.Red},
	{Part: regexp.MustCompile(`(not ready|warning|restart needed):`), Colour: printable.Yellow},
}

// paint returns a line with colours if they are wanted.
func paint(text string, colours bool) string {
	if !colours {
		return text
	}
	return paints.Paint(text)
}

// times formats times.
type times struct {
	at    func(time.Time) string // of an event
	since func(time.Time) string // of a state that has lasted from then on
}

// absoluteTimes returns a format whose text is the same in each Document.
func absoluteTimes() times {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	return times{at, func(t time.Time) string { return "since " + at(t) }}
}

// relativeTo returns a format of ages and delays.
func relativeTo(now time.Time) times {
	at := func(t time.Time) string {
		if ahead := t.Sub(now); ahead > 0 {
			return "in " + duration(ahead)
		}
		return duration(now.Sub(t)) + " ago"
	}
	return times{at, func(t time.Time) string { return "for " + duration(now.Sub(t)) }}
}

// duration formats a duration in at most two units.
func duration(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// line is one line of the text. Lines about the same subject belong to one part.
type line struct{ part, text string }

// rejectionPart is the part about a file that the agent does not use.
const rejectionPart = "rejection"

// poolPart returns the name of the part about a pool.
func poolPart(p Pool) string {
	return "pool " + printable.Text(p.Name) + ", " + printable.Text(p.Key)
}

// lines returns the text of a Document. A line that is longer than columns has one long text without spaces.
func lines(d Document, format times) []line {
	all := agentLines(d, format)
	all = append(all, configLines(d, format)...)
	all = append(all, rejectionLines(d, format)...)
	all = append(all, reloadLines(d, format)...)
	return append(all, poolLines(d, format)...)
}

func agentLines(d Document, format times) []line {
	health := map[bool]string{true: "healthy", false: "UNHEALTHY"}[d.Healthy]
	switch {
	case d.Stopping && !d.StopAt.IsZero():
		health += ", stopping (running jobs are stopped " + format.at(d.StopAt) + ")"
	case d.Stopping:
		health += ", stopping"
	case d.Ready:
		health += ", ready"
	default:
		health += ", NOT READY"
	}
	all := paragraph("agent", "agent", fmt.Sprintf("%s, started %s, pid %d, version %s",
		health, format.at(d.Agent.StartedAt), d.Agent.PID, d.Agent.Version))
	if d.Problem != "" {
		all = append(all, paragraph("agent", "", "problem: "+d.Problem)...)
	}
	for _, r := range d.NotReady {
		reason := r.Reason
		if r.Pool != "" {
			reason = "pool " + r.Pool + ": " + reason
		}
		all = append(all, paragraph("agent", "", "not ready: "+reason)...)
	}
	for _, warning := range d.Agent.Warnings {
		all = append(all, paragraph("agent", "", "warning: "+warning)...)
	}
	return all
}

func configLines(d Document, format times) []line {
	c := d.Config
	all := paragraph("config", "config", cmp.Or(c.Path, "no file: environment variables only"))
	progress := fmt.Sprintf("generation %d, in force %s", c.Desired, format.since(c.AppliedAt))
	switch {
	case !d.Converged && c.Applied == 0:
		progress = fmt.Sprintf("applying generation %d %s", c.Desired, format.since(c.AcceptedAt))
	case c.Applied != c.Desired:
		progress = fmt.Sprintf("applying generation %d %s; the last generation fully in force was %d",
			c.Desired, format.since(c.AcceptedAt), c.Applied)
	}
	all = append(all, paragraph("config", "", progress)...)
	all = append(all, paragraph("config", "", fmt.Sprintf("digest %.12s, changes detected by %s", c.Digest,
		c.Watch))...)
	if len(c.Restart) > 0 {
		all = append(all, paragraph("config", "", "restart needed: "+strings.Join(c.Restart, ", "))...)
	}
	for _, file := range c.Frozen {
		const frozen = "cannot detect a replacement of this file, because it is mounted by itself; " +
			"mount its directory: "
		all = append(all, paragraph("config", "", frozen+file)...)
	}
	for _, p := range c.Warnings {
		p.Hint = ""
		all = append(all, paragraph("config", "", "warning: "+p.String())...)
	}
	return all
}

func rejectionLines(d Document, format times) []line {
	r := d.Config.Rejection
	if r == nil {
		return nil
	}
	all := paragraph(rejectionPart, "REJECTED", fmt.Sprintf("the present file, %s; generation %d stays in force",
		format.at(r.At), d.Config.Desired))
	if r.Reason != "" {
		all = append(all, paragraph(rejectionPart, "", r.Reason)...)
	}
	for _, p := range r.Problems {
		for text := range strings.Lines(p.String()) {
			all = append(all, paragraph(rejectionPart, "", text)...)
		}
	}
	return all
}

func reloadLines(d Document, format times) []line {
	r := d.Reload
	if r == nil {
		return nil
	}
	all := paragraph("reload", "reload", format.at(r.At))
	for _, text := range changeTexts(r.Changes) {
		all = append(all, paragraph("reload", "", text)...)
	}
	for _, change := range []struct {
		name  string
		pools []string
	}{{"pools started", r.Started}, {"pools drained", r.Drained}, {"pools replaced", r.Replaced}} {
		if len(change.pools) > 0 {
			all = append(all, paragraph("reload", "", change.name+": "+strings.Join(change.pools, ", "))...)
		}
	}
	return all
}

// changeTexts returns a text for each changed key, ordered by effect. Pools in which a key
// changes from the same value to the same value share one text.
func changeTexts(changes []Change) (texts []string) {
	for _, effect := range reconcile.Effects() {
		pools := map[Change][]string{} // by change, without the pool
		var order []Change
		for _, c := range changes {
			if c.Effect != string(effect) {
				continue
			}
			pool := c.Pool
			if c.Pool = ""; pools[c] == nil {
				order = append(order, c)
			}
			pools[c] = append(pools[c], pool)
		}
		for _, c := range order {
			values := reconcile.Change{From: c.From, To: c.To}.Difference()
			prefix := strings.TrimPrefix(strings.Join(pools[c], ", ")+": ", ": ")
			texts = append(texts, fmt.Sprintf("%s: %s%s %s", c.Effect, prefix, c.Key, values))
		}
	}
	return texts
}

// poolLines returns a table of the pools, with the jobs of each below it.
func poolLines(d Document, format times) []line {
	all := []line{{"pools", ""}, {"pools", tableRow("POOL", "PHASE", "JOBS", "TARGET", "SERVICE")}}
	for _, p := range d.Pools {
		part := poolPart(p)
		service := strings.TrimPrefix(p.Service, "https://") // keep http://, which sends tokens in plain text
		row := tableRow(p.Name, p.Phase, fmt.Sprintf("%d/%d", len(p.Jobs), p.MaxJobs), p.Target, service)
		all = append(all, line{part, row})
		if !p.Until.IsZero() {
			all = append(all, indented(part, "resumes "+format.at(p.Until)+": "+p.Reason)...)
		} else if p.Reason != "" {
			all = append(all, indented(part, p.Reason)...)
		}
		if p.Problem != "" {
			all = append(all, indented(part, "problem: "+p.Problem)...)
		}
		if p.Stuck {
			all = append(all, indented(part, "STUCK: no progress "+format.since(p.ProgressAt))...)
		}
		for _, j := range p.Jobs {
			all = append(all, jobLines(part, j, format)...)
		}
	}
	return all
}

// jobLines returns the lines of a job, such as
//
//	acme/web/prod  update #12  deployment 0c8e361b…  running for 4m10s
//	  https://app.pulumi.com/acme/web/prod/deployments/12
//
// The id is cut if the line also has the stack. The log has the whole id.
func jobLines(part string, j Job, format times) []line {
	stack := strings.Join(slices.DeleteFunc([]string{j.Organization, j.Project, j.Stack}, isEmpty), "/")
	operation := j.Operation
	if j.Version != "" {
		operation += " #" + j.Version
	}
	id := "job " + j.Job
	switch {
	case j.Deployment != "":
		id = "deployment " + shortID(j.Deployment, stack != "")
	case j.Activity != "":
		id = j.Kind + " " + shortID(j.Activity, stack != "")
	}
	cells := slices.DeleteFunc([]string{stack, operation, id, j.Phase + " " + format.since(j.Since)}, isEmpty)
	for i := range cells {
		cells[i] = strings.TrimSpace(printable.Text(cells[i]))
	}
	all := []line{{part, "  " + strings.Join(cells, "  ")}}
	if utf8.RuneCountInString(all[0].text) > columns {
		all = wrap(part, "  ", "    ", strings.Join(cells, " "))
	}
	return append(all, wrap(part, "    ", "    ", j.URL)...)
}

func isEmpty(text string) bool { return text == "" }

// shortID returns an id, or its beginning if cut is true.
func shortID(id string, cut bool) string {
	const length = 8
	if short := []rune(id); cut && len(short) > length+1 {
		return string(short[:length]) + "…"
	}
	return id
}
