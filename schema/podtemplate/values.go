package podtemplate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"

	"github.com/cmwa-project/cmwa/schema/position"
)

// checkValues checks the values with CUE. It compiles only the types that the template
// uses, in a CUE context that is discarded afterwards.
func (c *checker) checkValues(clean position.Mapping) {
	context := cuecontext.New()
	root := context.CompileString(c.types.source(c.used))
	pod := root.LookupPath(cue.ParsePath(Root))
	if pod.Err() != nil {
		c.report(position.RuleInternal, c.at, "",
			"cannot be checked: the built-in schema is invalid (a bug in cmwa)", "")
		return
	}

	// Collect the steps to the invalid values. An error in a disjunction also names the
	// parents of the invalid value. The parents are not reported.
	invalid := map[string]bool{}
	parents := map[string]bool{}
	for _, e := range errors.Errors(pod.Unify(context.Encode(clean.Plain())).Validate(cue.Concrete(true))) {
		steps := slices.Clone(e.Path())
		if len(steps) > 0 && steps[0] == Root {
			steps = steps[1:]
		}
		for i, step := range steps {
			if text, err := strconv.Unquote(step); err == nil {
				steps[i] = text
			}
			parents[strings.Join(steps[:i], "\x00")] = true
		}
		invalid[strings.Join(steps, "\x00")] = true
	}

	// Report each invalid value, unless another check has reported a problem with its path
	// and position.
	for _, steps := range slices.Sorted(maps.Keys(invalid)) {
		if parents[steps] {
			continue
		}
		location, ok := c.locations[steps]
		if !ok {
			c.report(position.RuleInternal, c.at, "",
				"a value of the template is invalid, and the reason is unknown (a bug in cmwa)", "")
			continue
		}
		if !slices.ContainsFunc(c.problems, func(p position.Problem) bool {
			return p.Path == location.path && p.Line == location.v.At.Line && p.Column == location.v.At.Column
		}) {
			c.report(position.RulePodTemplate, location.v.At, location.path, "must be "+c.types.describe(location.f),
				c.hint(location))
		}
	}
}

// byteAmount matches amounts of memory in the notation of other programs, such as 4 GB.
var byteAmount = regexp.MustCompile(`^[0-9.]+ ?([kKMGTPE]i?)?[bB]?$`)

// hint returns the hint for an invalid value. It depends on the type of the value that
// the template has and on the type that the schema requires.
func (c *checker) hint(l location) string {
	// Each case is a type of the template's value, with the usual mistakes of that type.
	must := c.types.describe(l.f)
	switch data := l.v.Data.(type) {
	case string:
		if best := position.Closest(data, c.types.choices(l.f)); best != "" {
			return fmt.Sprintf("did you mean %s?", best)
		}
		if must == "true or false" &&
			slices.Contains([]string{"yes", "on", "no", "off", "y", "n", "true", "false"}, strings.ToLower(data)) {
			return "write true or false, in lowercase and without quotes"
		}
		if strings.Contains(must, "quantity") && byteAmount.MatchString(data) {
			return "leave out the space and the B: 4Gi, 512Mi or 4G"
		}
		if _, err := strconv.Atoi(data); err == nil && strings.HasPrefix(must, "a whole number") {
			return "remove the quotes"
		}
		if l.f.kind == kindList {
			return "write each entry on its own line, after a dash"
		}
	case bool, int, int64, uint64, float64: // a string without quotes, or an entry without a list
		if must == "text" || strings.HasPrefix(must, "at most 63") {
			return "put the value in quotes"
		}
		if l.f.kind == kindList {
			return "write each entry on its own line, after a dash"
		}
	case []position.Value:
		if l.f.kind == kindLeaf {
			return "write one value, without brackets or dashes"
		}
	case position.Mapping:
		if l.f.kind == kindList {
			return "put a dash before each entry"
		}
	}
	return ""
}
