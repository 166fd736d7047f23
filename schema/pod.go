package schema

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// CheckPod checks a file that holds a pod template, YAML or JSON. The problems
// are sorted, and none quotes a value. It takes time in proportion to the file,
// which parse bounds, and is safe for concurrent use.
func CheckPod(file string, content []byte) position.Problems {
	v, problems, ok := parsePod(file, content)
	if ok {
		problems = append(problems, podTemplate(v, "")...)
	}
	problems.Sort()
	return problems
}

// parsePod reads a template file, YAML or JSON. An empty file and {} are an empty
// template.
func parsePod(file string, content []byte) (position.Value, position.Problems, bool) {
	t, problems, ok := position.Parse(file, content)
	for i := range problems {
		if problems[i].Rule == position.RuleSyntax && t == nil && strings.HasPrefix(problems[i].Hint, "write lines such as") {
			problems[i].Hint = "write a Pod, or the part of one that is to change"
		}
	}
	return position.Value{At: position.Origin{File: file, Line: 1, Column: 1}, Data: t}, problems, ok
}

// isPod reports whether a document looks like a Pod or a pod template, and not
// like a configuration of the agent.
func isPod(t position.Mapping) bool {
	if kind, ok := t["kind"].Data.(string); ok {
		return kind == "Pod" || kind == "PodTemplate" || kind == "PodTemplateSpec"
	}
	for _, key := range []string{"spec", "metadata"} {
		if _, ok := t[key].Data.(position.Mapping); ok {
			return true
		}
	}
	return false
}

// podTemplate checks one pod template: a Pod, or a part of one, that is laid over
// the generated Pod as a strategic merge patch. v is the template as it is
// written, and at its path, which is empty for a file of its own. It returns all
// problems at once, in no particular order; none quotes a value.
//
// CUE judges the values, this package the keys and whatever a value alone cannot
// tell: what a whole object needs, what the merge would stumble over, what is
// the agent's, and what does not go together.
func podTemplate(v position.Value, at string) position.Problems {
	types, err := readPodTypes()
	if err != nil {
		return position.Problems{{Rule: position.RuleInternal, File: v.At.File, Line: v.At.Line, Path: at, Message: "cannot be checked: the schema is at fault"}}
	}
	c := &podCheck{types: types, at: v.At, places: map[string]podPlace{}, used: map[*podField]bool{}, said: map[position.Problem]bool{}}
	switch data := v.Data.(type) {
	case nil:
		return nil
	case position.Mapping:
		c.protect(podNode{v: v, path: at})
		clean := c.mapping(data, v, "#Pod", podStep{path: at, loose: true})
		c.judge(clean)
		v.Data = clean
		c.rules(podNode{v: v, path: at})
	default:
		c.report(position.RulePodTemplate, v.At, at, "must be a mapping of keys to values", "write a Pod, or the part of one that is to change")
	}
	return c.problems
}

// podCheck is the check of one template.
type podCheck struct {
	types    podTypes
	at       position.Origin // of the template as a whole
	problems position.Problems
	said     map[position.Problem]bool
	places   map[string]podPlace // what CUE is asked about, by the steps to it
	used     map[*podField]bool
}

// podPlace is a value that CUE may refuse.
type podPlace struct {
	v    position.Value
	path string
	f    *podField
}

// podStep is where the walk is.
type podStep struct {
	path  string   // for people
	steps []string // for CUE
	loose bool     // laid over an object of the agent's, so that nothing is missing
	plain bool     // within what is taken over as it is, where directives mean nothing
}

// to goes on to a word of the schema or to an entry of a list.
func (s podStep) to(key string) podStep {
	s.path = position.Join(s.path, key)
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// into goes on to a key that the template chose.
func (s podStep) into(key string) podStep {
	s.path = position.Join(s.path, position.SafeName(key))
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

func (c *podCheck) report(rule position.Rule, at position.Origin, path, message, hint string) {
	p := position.Problem{Rule: rule, File: at.File, Line: at.Line, Column: at.Column, Path: path, Message: message, Hint: hint}
	if !c.said[p] {
		c.said[p] = true
		c.problems = append(c.problems, p)
	}
}

func (c *podCheck) warn(at position.Origin, path, message, hint string) {
	c.problems = append(c.problems, position.NewWarning(position.RulePodTemplate, at, path, message, hint))
}
