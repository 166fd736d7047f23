package podtemplate

import (
	"slices"

	"github.com/cmwa-project/cmwa/schema/position"
)

// CheckFile checks a file that contains a Pod template in YAML or JSON. The problems
// are sorted, and no problem quotes a value except a number. The time is proportional to the
// size of the file. Parse limits this size. CheckFile is safe for concurrent use.
func CheckFile(file string, content []byte) position.Problems {
	v, problems, ok := Parse(file, content)
	if ok {
		problems = append(problems, CheckWhole(v, "")...)
	}
	problems.Sort()
	return problems
}

// CheckWhole is [Check] for a template that applies to every job of a pool. In a valid template, it
// also warns about containers with an image if no entry of the list has the name of the job's container: a
// container that is for the job may have another name by mistake.
func CheckWhole(v position.Value, path string) position.Problems {
	problems := Check(v, path)
	if len(problems.Errors()) > 0 {
		return problems
	}
	n := node{v: v, path: path}
	list := n.get("spec", "containers").entries()
	for _, container := range list {
		if container.get("name").text() == mainContainer {
			return problems
		}
	}
	for _, container := range list {
		if name := container.get("name"); name.text() != "" && container.get("image").text() != "" {
			problems = append(problems, position.NewWarning(position.RulePodTemplate, name.v.At, name.path,
				"adds a container: the job runs in "+mainContainer,
				"if it is for the job, name it "+mainContainer+"; otherwise also list - name: "+mainContainer))
		}
	}
	return problems
}

// Parse parses a template in YAML or JSON. An empty file and {} are an empty
// template. ok is false if the file cannot be used as a template.
func Parse(file string, content []byte) (v position.Value, problems position.Problems, ok bool) {
	t, problems, ok := position.Parse(file, content, hintForTemplate)
	return position.Value{At: position.Origin{File: file, Line: 1, Column: 1}, Data: t}, problems, ok
}

// hintForTemplate is the hint for a file or a key that contains no template.
const hintForTemplate = "write a Pod, or the part of a Pod to change"

// Is reports whether a document looks like a Pod or a Pod template rather than a
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

// Check checks one Pod template: a Pod or a part of a Pod, which the agent applies as a
// strategic merge patch to the Pod that it generates. path is the path of the template
// in its file, empty if the file contains nothing else. Check returns all problems, in
// no particular order. No problem quotes a value except a number. Check has four steps:
//
//  1. Report fields that belong to the agent.
//  2. Check keys against the types of a Pod, and check and remove merge directives.
//  3. Check each value with CUE.
//  4. Check the remaining rules of the API server. Most of them depend on several values.
func Check(v position.Value, path string) position.Problems {
	types, err := readTypes()
	if err != nil {
		return position.Problems{{
			Rule: position.RuleInternal, File: v.At.File, Line: v.At.Line, Path: path,
			Message: "cannot be checked: the built-in schema is invalid (a bug in cmwa)",
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
		// 1. Report fields that belong to the agent.
		c.protect(node{v: v, path: path})

		// 2. Check keys and directives.
		clean := c.mapping(data, v, Root, step{path: path, partial: true})

		// 3. Check each value.
		c.checkValues(clean)

		// 4. Check the remaining rules.
		v.Data = clean
		c.rules(node{v: v, path: path})
	default:
		c.report(position.RulePodTemplate, v.At, path, "must be a mapping of keys to values", hintForTemplate)
	}
	return c.problems
}

// checker checks one template.
type checker struct {
	types     typeSet
	at        position.Origin // of the template
	problems  position.Problems
	reported  map[position.Problem]bool
	locations map[string]location // of the values that CUE checks; the key is the joined steps
	used      map[*valueType]bool // types of the keys that the template sets
}

// location is a value that CUE checks, its path and its type.
type location struct {
	v    position.Value
	path string
	f    *valueType
}

// step is a position in a template.
type step struct {
	path    string   // for messages
	steps   []string // for CUE
	partial bool     // the agent's Pod already has the object, so no key is required
	copied  bool     // the merge copies the object as it is, so directives have no effect
}

// field returns the step to a key of the types, or to an entry of a list.
func (s step) field(key string) step {
	s.path = position.Join(s.path, key)
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// userKey returns the step to a key that the template chooses, such as a label.
func (s step) userKey(key string) step {
	s.path = position.Join(s.path, position.SafeName(key))
	s.steps = append(slices.Clone(s.steps), key)
	return s
}

// report adds an error, unless it has been added before.
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
