package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
)

// statusColumns is the width of the picture, whatever the terminal's.
const statusColumns = 80

// times are the words for times.
type times struct {
	at    func(time.Time) string // of an event
	since func(time.Time) string // of what lasts from then on
}

// clocks tell times in full.
func clocks() times {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	return times{at, func(t time.Time) string { return "since " + at(t) }}
}

// ages tell times as seen from the agent's clock.
func (d statusDocument) ages() times {
	at := func(t time.Time) string {
		if ahead := t.Sub(d.Now); ahead > 0 {
			return "in " + length(ahead)
		}
		return length(d.Now.Sub(t)) + " ago"
	}
	return times{at, func(t time.Time) string { return "for " + length(d.Now.Sub(t)) }}
}

// length tells a duration with the two units that matter.
func length(d time.Duration) string {
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

// line is one line of the picture. Those that stand for one thing have the same
// name for it.
type line struct{ of, text string }

// lines draws the status, no line longer than statusColumns.
func (d statusDocument) lines(tell times) []line {
	var all []line
	word := map[bool]string{true: "healthy", false: "UNHEALTHY"}[d.Healthy]
	switch {
	case d.Stopping:
		word += ", stopping"
	case d.Ready:
		word += ", ready"
	default:
		word += ", NOT READY"
	}
	all = append(all, paragraph("agent", "agent", fmt.Sprintf("%s, started %s, pid %d, version %s", word, tell.at(d.Agent.StartedAt), d.Agent.PID, d.Agent.Version))...)
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
	c := d.Config
	all = append(all, paragraph("config", "config", cmp.Or(c.Path, "none: the environment says all"))...)
	force := fmt.Sprintf("generation %d, in force %s", c.Desired, tell.since(c.AppliedAt))
	switch {
	case !d.Converged && c.Applied == 0:
		force = fmt.Sprintf("generation %d wanted %s, not in force in full yet", c.Desired, tell.since(c.AcceptedAt))
	case c.Applied != c.Desired:
		force = fmt.Sprintf("generation %d wanted %s, last in force in full: %d", c.Desired, tell.since(c.AcceptedAt), c.Applied)
	}
	all = append(all, paragraph("config", "", force)...)
	all = append(all, paragraph("config", "", fmt.Sprintf("digest %.12s, changes seen by %s", c.Digest, c.Watch))...)
	for _, file := range c.Frozen {
		all = append(all, paragraph("config", "", "mounted by itself, so that a new file in its place is never seen; mount its folder: "+file)...)
	}
	for _, p := range c.Warnings {
		said := position.Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message}
		all = append(all, paragraph("config", "", "warning: "+said.String())...)
	}
	if r := c.Rejection; r != nil {
		all = append(all, paragraph("refused", "REFUSED", fmt.Sprintf("the file as it is now, %s; generation %d stays", tell.at(r.At), c.Desired))...)
		if r.Reason != "" {
			all = append(all, paragraph("refused", "", r.Reason)...)
		}
		for _, p := range r.Problems {
			said := position.Problem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Message: p.Message, Hint: p.Hint}
			for text := range strings.Lines(said.String()) {
				all = append(all, paragraph("refused", "", text)...)
			}
		}
	}
	return append(append(all, d.reloadLines(tell)...), d.poolLines(tell)...)
}

// reloadLines tell what the last change did.
func (d statusDocument) reloadLines(tell times) []line {
	r := d.Reload
	if r == nil {
		return nil
	}
	lines := paragraph("reload", "reload", tell.at(r.At))
	keys := func(list []statusKey) (words []string) {
		for _, k := range list {
			words = append(words, strings.TrimPrefix(k.Pool+": "+k.Key, ": "))
		}
		return words
	}
	for _, part := range []struct {
		what  string
		words []string
	}{
		{"now", keys(r.Now)},
		{"next job", keys(r.NextJob)},
		{"NEEDS RESTART", keys(r.NeedsRestart)},
		{"pools started", r.Started},
		{"pools drained", r.Drained},
		{"pools replaced", r.Replaced},
	} {
		if len(part.words) > 0 {
			lines = append(lines, paragraph("reload", "", part.what+": "+strings.Join(part.words, ", "))...)
		}
	}
	return lines
}

// poolLines are the table of pools, with the jobs of each below it.
func (d statusDocument) poolLines(tell times) []line {
	rows := [][]string{{"POOL", "PHASE", "JOBS", "TARGET", "SERVICE"}}
	for _, p := range d.Pools {
		service := strings.TrimPrefix(p.Service, "https://") // that it is http:// matters: tokens go there in the clear
		rows = append(rows, []string{p.Name, p.Phase, fmt.Sprintf("%d/%d", len(p.Jobs), p.MaxJobs), p.Target, service})
	}
	lines := []line{{"pools", ""}, {"pools", tableRow(rows[0])}}
	for i, p := range d.Pools {
		of := "pool " + printable(p.Name) + ", " + printable(p.Key)
		lines = append(lines, line{of, tableRow(rows[i+1])})
		if !p.Until.IsZero() {
			lines = append(lines, indented(of, "goes on "+tell.at(p.Until)+": "+p.Why)...)
		} else if p.Why != "" {
			lines = append(lines, indented(of, p.Why)...)
		}
		if p.Problem != "" {
			lines = append(lines, indented(of, "problem: "+p.Problem)...)
		}
		if p.Stuck {
			lines = append(lines, indented(of, "STUCK: no turn of its loop "+tell.since(p.ProgressAt))...)
		}
		for _, j := range p.Jobs {
			lines = append(lines, line{of, cut(fmt.Sprintf("  %-8s %s  %s", printable(j.Phase), tell.since(j.Since), printable(cmp.Or(j.Subject, j.ID))), statusColumns)})
		}
	}
	return lines
}

// tableRow writes the cells below each other from row to row. The columns are as
// wide for every status, so that no row changes with its neighbours.
func tableRow(cells []string) string {
	var b strings.Builder
	for i, width := range []int{24, 8, 7, 10, 23} {
		fmt.Fprintf(&b, "%-*s  ", width, cut(printable(cells[i]), width))
	}
	return cut(strings.TrimRight(b.String(), " "), statusColumns)
}

// margin is the column at which what belongs to a word in front begins.
const margin = 9

// paragraph breaks a text into lines behind a word in front.
func paragraph(of, front, text string) []line {
	return broken(of, fmt.Sprintf("%-*s", margin, front), strings.Repeat(" ", margin), text)
}

func indented(of, text string) []line { return broken(of, "  ", "  ", text) }

// broken breaks a text at blanks, and a word that is longer than a line within.
func broken(of, first, others, text string) []line {
	var lines []line
	at := first
	room := statusColumns - len(others)
	rest := []rune(printable(strings.Join(strings.Fields(text), " ")))
	for {
		if len(rest) <= room {
			return append(lines, line{of, strings.TrimRight(at+string(rest), " ")})
		}
		end := room
		for i := room; i > room/2; i-- {
			if rest[i] == ' ' {
				end = i
				break
			}
		}
		lines = append(lines, line{of, strings.TrimRight(at+string(rest[:end]), " ")})
		rest = []rune(strings.TrimLeft(string(rest[end:]), " "))
		at = others
	}
}

// cut shortens a text to a number of characters.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:max(0, most-3)]) + "..."
	}
	return text
}
