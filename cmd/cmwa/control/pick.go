package control

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/printable"
)

// Pick returns the only job that has an id, or an id that begins with the text. The text may end with …, as in the
// table of cmwa jobs list. IDs returns the ids of a job, which may be empty.
func Pick[J any](jobs []J, text string, ids func(J) []string) (job J, err error) {
	id := strings.TrimSuffix(text, "…")
	var exact, found []J
	for _, j := range jobs {
		switch all := ids(j); {
		case id == "":
		case slices.Contains(all, id):
			exact = append(exact, j)
		case slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(other, id) }):
			found = append(found, j)
		}
	}
	if len(exact) > 0 {
		found = exact
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return job, fmt.Errorf("there is no job %s: cmwa jobs list has the jobs", printable.QuoteName(text))
	}
	return job, fmt.Errorf("%d jobs have an id that begins with %s: give the whole id of the job",
		len(found), printable.QuoteName(text))
}
