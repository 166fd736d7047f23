package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/report"
)

// WriteText writes a Document for people, in lines of at most 80 columns. Times are
// relative to the agent's clock.
func WriteText(w io.Writer, d Document) error {
	var b strings.Builder
	for _, l := range lines(d, relativeTo(d.Now)) {
		b.WriteString(l.text + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Redraw writes a Document over the one before on a terminal, with as many lines as
// fit. Height is the number of lines of the terminal, 0 if it is unknown. Lost is why
// the agent does not respond at present, nil if it does.
func Redraw(w io.Writer, d Document, lost error, height int) error {
	all := lines(d, relativeTo(d.Now))
	if lost != nil {
		all = append(paragraph("lost", "lost", lost.Error()), all...)
	}
	if height > 2 && len(all) >= height {
		hidden := len(all) - height + 2
		all = append(all[:height-2], line{"more", fmt.Sprintf("... and %d lines", hidden)})
	}
	var b strings.Builder
	b.WriteString("\x1b[H") // to the top left
	for _, l := range all {
		b.WriteString(l.text + "\x1b[K\n") // clear to the end of the line
	}
	b.WriteString("\x1b[J") // clear to the end of the screen
	_, err := io.WriteString(w, b.String())
	return err
}

// times writes times.
type times struct {
	at    func(time.Time) string // of an event
	since func(time.Time) string // of a state that has lasted from then on
}

// absoluteTimes returns what writes times that do not change from one Document to the
// next.
func absoluteTimes() times {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	return times{at, func(t time.Time) string { return "since " + at(t) }}
}

// relativeTo returns what writes ages and delays.
func relativeTo(now time.Time) times {
	at := func(t time.Time) string {
		if ahead := t.Sub(now); ahead > 0 {
			return "in " + duration(ahead)
		}
		return duration(now.Sub(t)) + " ago"
	}
	return times{at, func(t time.Time) string { return "for " + duration(now.Sub(t)) }}
}

// duration writes a duration in its two largest units.
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

// line is one line of the text. Lines about the same thing belong to one part.
type line struct{ part, text string }

// lines returns the text of a Document. No line is longer than columns.
func lines(d Document, format times) []line {
	all := agentLines(d, format)
	all = append(all, configLines(d, format)...)
	all = append(all, rejectionLines(d, format)...)
	all = append(all, reloadLines(d, format)...)
	return append(all, poolLines(d, format)...)
}

func agentLines(d Document, format times) []line {
	word := map[bool]string{true: "healthy", false: "UNHEALTHY"}[d.Healthy]
	switch {
	case d.Stopping:
		word += ", stopping"
	case d.Ready:
		word += ", ready"
	default:
		word += ", NOT READY"
	}
	all := paragraph("agent", "agent", fmt.Sprintf("%s, started %s, pid %d, version %s",
		word, format.at(d.Agent.StartedAt), d.Agent.PID, d.Agent.Version))
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
	return all
}

func configLines(d Document, format times) []line {
	c := d.Config
	all := paragraph("config", "config", cmp.Or(c.Path, "none: the environment says all"))
	force := fmt.Sprintf("generation %d, in force %s", c.Desired, format.since(c.AppliedAt))
	switch {
	case !d.Converged && c.Applied == 0:
		force = fmt.Sprintf("generation %d wanted %s, not in force in full yet", c.Desired, format.since(c.AcceptedAt))
	case c.Applied != c.Desired:
		force = fmt.Sprintf("generation %d wanted %s, last in force in full: %d",
			c.Desired, format.since(c.AcceptedAt), c.Applied)
	}
	all = append(all, paragraph("config", "", force)...)
	all = append(all, paragraph("config", "", fmt.Sprintf("digest %.12s, changes seen by %s", c.Digest, c.Watch))...)
	for _, file := range c.Frozen {
		const frozen = "mounted by itself, so that a new file in its place is never seen; mount its folder: "
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
	all := paragraph("refused", "REFUSED", fmt.Sprintf("the file as it is now, %s; generation %d stays",
		format.at(r.At), d.Config.Desired))
	if r.Reason != "" {
		all = append(all, paragraph("refused", "", r.Reason)...)
	}
	for _, p := range r.Problems {
		for text := range strings.Lines(p.String()) {
			all = append(all, paragraph("refused", "", text)...)
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
	for _, effect := range []struct {
		name string
		list []string
	}{
		{"now", keyNames(r.Now)},
		{"next job", keyNames(r.NextJob)},
		{"NEEDS RESTART", keyNames(r.NeedsRestart)},
		{"pools started", r.Started},
		{"pools drained", r.Drained},
		{"pools replaced", r.Replaced},
	} {
		if len(effect.list) > 0 {
			all = append(all, paragraph("reload", "", effect.name+": "+strings.Join(effect.list, ", "))...)
		}
	}
	return all
}

func keyNames(keys []Key) (names []string) {
	for _, k := range keys {
		names = append(names, strings.TrimPrefix(k.Pool+": "+k.Key, ": "))
	}
	return names
}

// poolLines returns a table of the pools, with the jobs of each below it.
func poolLines(d Document, format times) []line {
	all := []line{{"pools", ""}, {"pools", tableRow("POOL", "PHASE", "JOBS", "TARGET", "SERVICE")}}
	for _, p := range d.Pools {
		part := "pool " + report.Printable(p.Name) + ", " + report.Printable(p.Key)
		service := strings.TrimPrefix(p.Service, "https://") // http:// stays: tokens are sent in plain text there
		row := tableRow(p.Name, p.Phase, fmt.Sprintf("%d/%d", len(p.Jobs), p.MaxJobs), p.Target, service)
		all = append(all, line{part, row})
		if !p.Until.IsZero() {
			all = append(all, indented(part, "goes on "+format.at(p.Until)+": "+p.Why)...)
		} else if p.Why != "" {
			all = append(all, indented(part, p.Why)...)
		}
		if p.Problem != "" {
			all = append(all, indented(part, "problem: "+p.Problem)...)
		}
		if p.Stuck {
			all = append(all, indented(part, "STUCK: no turn of its loop "+format.since(p.ProgressAt))...)
		}
		for _, j := range p.Jobs {
			text := fmt.Sprintf("  %-8s %s  %s", report.Printable(j.Phase), format.since(j.Since), report.Printable(cmp.Or(j.Subject, j.ID)))
			all = append(all, line{part, truncate(text, columns)})
		}
	}
	return all
}
