package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/cmwa-project/cmwa/schema/printable"
)

// WriteJobs writes a table of the jobs of a Document for people: those in flight by pool, then the jobs that ended
// last, the last one first. Times are relative to the agent's clock.
func WriteJobs(w io.Writer, d Document) error {
	format := relativeTo(d.Now)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(pool string, j Job, state string) {
		operation := j.Operation
		if j.Version != "" {
			operation += " #" + j.Version
		}
		id := cmp.Or(j.Deployment, j.Activity, j.Job)
		cells := []string{shortID(id, true), jobTitle(j), operation, pool, state, j.Instance}
		for i, cell := range cells {
			cells[i] = cmp.Or(printable.OneLine(cell), "-")
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_, _ = fmt.Fprintln(table, "DEPLOYMENT\tSTACK\tOPERATION\tPOOL\tSTATE\tINSTANCE")
	for _, p := range d.Pools {
		jobs := slices.SortedFunc(slices.Values(p.Jobs), func(a, b Job) int { return a.Since.Compare(b.Since) })
		for _, j := range jobs {
			row(p.Name, j, j.Phase+" "+format.since(j.Since))
		}
	}
	for _, j := range d.Ended {
		took := duration(j.EndedAt.Sub(j.Since))
		row(j.Pool, j.Job, fmt.Sprintf("%s %s, after %s", j.Outcome, format.at(j.EndedAt), took))
	}
	return table.Flush()
}

// jobTitle names a job by its stack, or else by its kind.
func jobTitle(j Job) string {
	if j.Stack == "" {
		return j.Kind
	}
	return strings.Join(slices.DeleteFunc([]string{j.Organization, j.Project, j.Stack}, isEmpty), "/")
}
