package reconcile

import (
	"slices"

	"github.com/cmwa-project/cmwa/schema/position"
)

// logReload logs the changes of an accepted configuration. MovedTo is the path of its file
// if the path has changed, and otherwise empty.
func (r *Reloader) logReload(generation uint64, movedTo string, reloads []Reload) {
	lines := logLines(reloads)
	message := "configuration reloaded"
	if len(lines) == 0 {
		lines = [][]any{nil}
		message = "configuration reloaded, no setting changed: only comments, " +
			"or keys that environment variables override"
	}
	if movedTo != "" {
		lines[0] = append([]any{"file", movedTo}, lines[0]...)
	}
	for _, line := range lines {
		r.log.Info(message, append([]any{"generation", generation}, line...)...)
	}
}

// logLines returns the attributes of the log lines that describe reloads. There is a line for
// each effect of each group of pools with equal changes. It has the changed values.
func logLines(reloads []Reload) (lines [][]any) {
	for _, group := range alike(reloads) {
		r := group[0]
		var about []any
		if r.Pool != "" {
			about = append(about, "pool", poolNames(group))
		}
		switch r.PoolChange {
		case Started, Drained, Replaced:
			about = append(about, "change", string(r.PoolChange))
		}
		before := len(lines)
		for _, effect := range Effects() {
			changes := r.with(effect)
			if len(changes) == 0 {
				continue
			}
			line := slices.Clone(about)
			for _, c := range changes {
				line = append(line, c.Key, c.Difference())
			}
			lines = append(lines, append(line, "effect", string(effect)))
		}
		if len(lines) == before {
			lines = append(lines, about) // the pool has no changed key
		}
	}
	return lines
}

// inLine returns the text of a problem for one line of the log.
func inLine(p position.Problem) string {
	hint := p.Hint
	p.Hint = ""
	if hint == "" {
		return p.String()
	}
	return p.String() + ": " + hint
}
