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

// judge asks CUE about the values. It compiles no more of the schema than the
// template makes use of, in a context that is then thrown away.
func (c *checker) judge(clean position.Mapping) {
	context := cuecontext.New()
	root := context.CompileString(c.types.source(c.used))
	pod := root.LookupPath(cue.ParsePath(Root))
	if pod.Err() != nil {
		c.report(position.RuleInternal, c.at, "", "cannot be checked: the schema is at fault", "")
		return
	}
	refused := map[string]bool{}
	outer := map[string]bool{}
	for _, e := range errors.Errors(pod.Unify(context.Encode(clean.Plain())).Validate(cue.Concrete(true))) {
		steps := slices.Clone(e.Path())
		if len(steps) > 0 && steps[0] == Root {
			steps = steps[1:]
		}
		for i, step := range steps {
			if text, err := strconv.Unquote(step); err == nil {
				steps[i] = text
			}
			outer[strings.Join(steps[:i], "\x00")] = true
		}
		refused[strings.Join(steps, "\x00")] = true
	}
	for _, steps := range slices.Sorted(maps.Keys(refused)) {
		if outer[steps] {
			continue
		}
		place, ok := c.locations[steps]
		if !ok {
			c.report(position.RuleInternal, c.at, "",
				"a value of the template is refused, and the program cannot tell why", "")
			continue
		}
		if !slices.ContainsFunc(c.problems, func(p position.Problem) bool {
			return p.Path == place.path && p.Line == place.v.At.Line && p.Column == place.v.At.Column
		}) {
			c.report(position.RulePodTemplate, place.v.At, place.path, "must be "+c.types.sentence(place.f),
				c.hint(place))
		}
	}
}

// byteUnit is how people write an amount of memory outside of Kubernetes.
var byteUnit = regexp.MustCompile(`^[0-9.]+ ?([kKMGTPE]i?)?[bB]?$`)

// hint says what to write instead, where the kind of the value tells.
func (c *checker) hint(place location) string {
	must := c.types.sentence(place.f)
	switch data := place.v.Data.(type) {
	case string:
		if best := position.Closest(data, c.types.choices(place.f)); best != "" {
			return fmt.Sprintf("did you mean %s?", best)
		}
		if must == "true or false" &&
			slices.Contains([]string{"yes", "on", "no", "off", "y", "n", "true", "false"}, strings.ToLower(data)) {
			return "write true or false, in small letters and without quotes"
		}
		if strings.Contains(must, "quantity") && byteUnit.MatchString(data) {
			return "leave out the blank and the B: 4Gi, 512Mi or 4G"
		}
		if _, err := strconv.Atoi(data); err == nil && strings.HasPrefix(must, "a whole number") {
			return "remove the quotes"
		}
		if place.f.kind == kindList {
			return "write each entry in a line of its own, after a dash"
		}
	case bool, int, int64, uint64, float64:
		if must == "text" || strings.HasPrefix(must, "at most 63") {
			return "put the value in quotes"
		}
		if place.f.kind == kindList {
			return "write each entry in a line of its own, after a dash"
		}
	case []position.Value:
		if place.f.kind == kindLeaf {
			return "write one value, without brackets or dashes"
		}
	case position.Mapping:
		if place.f.kind == kindList {
			return "put a dash before each entry"
		}
	}
	return ""
}
