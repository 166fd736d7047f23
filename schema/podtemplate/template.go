package podtemplate

import (
	"slices"

	"github.com/cmwa-project/cmwa/schema/position"
)

// CheckFile checks a file that contains a Pod template, YAML or JSON. The problems
// are sorted, and none quotes a value. CheckFile takes time in proportion to the
// file, whose size Parse limits, and is safe for concurrent use.
func CheckFile(file string, content []byte) position.Problems {
	v, problems, ok := Parse(file, content)
	if ok {
		problems = append(problems, Check(v, "")...)
	}
	problems.Sort()
	return problems
}

// Parse reads a template file, YAML or JSON. An empty file and {} are an empty
// template. ok is false if the file cannot be used as a template.
func Parse(file string, content []byte) (v position.Value, problems position.Problems, ok bool) {
	t, problems, ok := position.Parse(file, content, hintForTemplate)
	return position.Value{At: position.Origin{File: file, Line: 1, Column: 1}, Data: t}, problems, ok
}

// hintForTemplate is the hint for a file or a key that contains something else.
const hintForTemplate = "write a Pod, or the part of one that is to change"

// Is reports whether a document looks like a Pod or a Pod template, and not like a
// configuration of the agent.
func Is(t position.Mapping) bool {
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

// Check checks one Pod template: a Pod, or a part of one, that the agent applies to
// the Pod that it generates, as a strategic merge patch. path is that of the
// template, empty for a file of its own. Check returns all problems, in no
// particular order; none quotes a value.
//
//  1. Fields that belong to the agent are refused, whatever else is wrong.
//  2. Keys are checked against the types of a Pod, and directives of the merge are
//     taken out.
//  3. CUE checks the values.
//  4. Rules check what no value alone shows.
func Check(v position.Value, path string) position.Problems {
	types, err := readTypes()
	if err != nil {
		return position.Problems{{
			Rule: position.RuleInternal, File: v.At.File, Line: v.At.Line, Path: path,
			Message: "cannot be checked: the schema is at fault",
		}}
	}
	c := &checker{
		types: types, at: v.At, locations: map[string]location{},
		used: map[*valueType]bool{}, reported: map[position.Problem]bool{},
	}
	switch data := v.Data.(type) {
	case nil:
		return nil
	case position.Mapping:
		// 1. Fields of the agent.
		c.protect(node{v: v, path: path})

		// 2. Keys and directives.
		clean := c.mapping(data, v, Root, step{path: path, loose: true})

		// 3. Values.
		c.judge(clean)

		// 4. Rules across values.
		v.Data = clean
		c.rules(node{v: v, path: path})
	default:
		c.report(position.RulePodTemplate, v.At, path, "must be a mapping of keys to values", hintForTemplate)
	}
	return c.problems
}

// checker is the check of one template.
type checker struct {
	types     typeSet
	at        position.Origin // of the template as a whole
	problems  position.Problems
	reported  map[position.Problem]bool
	locations map[string]location // of the values that CUE checks, by the steps to them
	used      map[*valueType]bool // types that the template has values of
}

// location is a value that CUE may refuse.
type location struct {
	v    position.Value
	path string
	f    *valueType
}

// step is the position of the walk through a template.
type step struct {
	path  string   // for messages
	steps []string // for CUE
	loose bool     // the agent's Pod has the object already, so no key is required
	plain bool     // the merge copies the object as it is, so directives have no effect
}

// to returns the step to a key of the types or to an entry of a list.
func (s step) to(key string) step {
	s.path = position.Join(s.path, key)
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// into returns the step to a key that the template chose.
func (s step) into(key string) step {
	s.path = position.Join(s.path, position.SafeName(key))
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// report adds an error, once.
func (c *checker) report(rule position.Rule, at position.Origin, path, message, hint string) {
	p := position.NewError(rule, at, path, message, hint)
	if !c.reported[p] {
		c.reported[p] = true
		c.problems = append(c.problems, p)
	}
}

// warn adds a warning.
func (c *checker) warn(at position.Origin, path, message, hint string) {
	c.problems = append(c.problems, position.NewWarning(position.RulePodTemplate, at, path, message, hint))
}
