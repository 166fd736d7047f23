package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"

	"github.com/cmwa-project/cmwa/schema/position"
)

// checkConstraints checks every value of a mapping and removes the invalid ones. CUE
// checks the constraints; Go checks the bounds of durations and quantities, because CUE
// cannot compare them.
func (l *load) checkConstraints(t position.Mapping) {
	for _, path := range l.schema.failures(l.schema.config, t) {
		f, at := l.schema.field(path)
		if f == nil {
			file, message := position.Origin{File: l.source.Path}, "is rejected for an unknown reason"
			l.report(position.NewError(position.RuleInternal, file, position.SafeName(path), message, ""))
			continue
		}
		if f.Kind == KindMappings {
			at = path // remove only the invalid entry
		}
		l.invalid[at] = true
		v, there := t.Get(strings.Split(path, ".")...)
		switch {
		case !there:
			l.missing(t, path)
		case at != path, f.Kind == KindMappings && path != f.Key:
			l.refuse(f, v, path, "must be "+f.entrySentence())
		default:
			l.refuse(f, v, path, "must be "+f.sentence())
		}
	}

	// Names of pools: CUE does not report a missing name while another value is invalid.
	scopes := []string{""}
	for i, entry := range poolEntries(t) {
		scopes = append(scopes, fmt.Sprintf("pools.%d.", i))
		if own, ok := entry.Data.(position.Mapping); ok {
			if path := fmt.Sprintf("pools.%d.name", i); own["name"].Key == (position.Origin{}) && !l.invalid[path] {
				l.missing(t, path)
				l.invalid[path] = true
			}
		}
	}

	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		if f.OnlyVariable || f.Kind != KindDuration && f.Kind != KindQuantity {
			continue
		}
		for _, scope := range scopes {
			path := scope + f.Key
			v, ok := t.Get(strings.Split(path, ".")...)
			if !ok || l.invalid[path] || scope != "" && !f.Pool {
				continue
			}
			if wrong := f.outOfBounds(v.Data); wrong != "" {
				l.refuse(f, v, path, wrong)
				l.invalid[path] = true
			}
		}
	}
	for path := range l.invalid {
		t.Remove(strings.Split(path, ".")...)
	}
}

// missing reports a missing key at the position of its mapping.
func (l *load) missing(t position.Mapping, path string) {
	end := strings.LastIndexByte(path, '.')
	outer, _ := t.Get(strings.Split(path[:max(end, 0)], ".")...)
	l.report(position.NewError(position.RuleValue, outer.At, path, "must be set", ""))
}

// checkVariables checks the values of variables without a key, and removes the invalid ones.
func (l *load) checkVariables(t position.Mapping) {
	for _, key := range l.schema.failures(l.schema.environment, t) {
		f := l.schema.byVariable[t[key].At.Variable]
		l.refuse(f, t[key], key, "must be "+f.sentence())
		delete(t, key)
	}
}

// refuse reports an invalid value of a field.
func (l *load) refuse(f *Field, v position.Value, path, message string) {
	l.report(position.NewError(position.RuleValue, v.At, path, message, f.hint(v, entryPath(path))))
}

// entryPath reports whether a path is the path of an entry of a list.
func entryPath(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '.')+1:])
	return err == nil
}

// failures returns the paths of the values of a mapping that CUE rejects, sorted, each once.
// It omits the path of a list if it returns the path of an entry of the list. The mapping must
// not have unknown keys, see [definition.removeUnknown].
//
// CUE evaluates each value by itself, and equal values of one key once, for the reason in the
// package comment.
func (d *definition) failures(constraints cue.Value, t position.Mapping) []string {
	checker := constraintChecker{schema: d, cache: map[string][]string{}, constraints: map[string]cue.Value{}}
	paths := checker.mapping(constraints, t, "", "")
	slices.Sort(paths)
	return slices.Compact(paths)
}

// constraintChecker checks values against the constraints of CUE. The cache has the invalid
// paths in each value by key, type and value of the latter. Such a path is ".3" for an entry
// of a list, and "" for the value itself.
type constraintChecker struct {
	schema      *definition
	cache       map[string][]string
	constraints map[string]cue.Value // by key
}

// mapping returns the invalid paths in a mapping. The path of the mapping is at, and its keys
// begin with prefix in the schema.
func (a constraintChecker) mapping(constraints cue.Value, t position.Mapping, prefix, at string) []string {
	var paths []string
	for key, v := range t {
		constraint, path := a.within(constraints, key, prefix+key), position.Join(at, key)
		inner, isMapping := v.Data.(position.Mapping)
		list, isList := v.Data.([]position.Value)
		switch kind := a.kind(prefix + key); {
		case kind == KindMapping && isMapping:
			paths = append(paths, a.mapping(constraint, inner, prefix+key+".", path)...)
		case kind == KindMappings && isList && len(list) > 0:
			entries := constraint.LookupPath(cue.MakePath(cue.AnyIndex))
			for i, entry := range list {
				path := fmt.Sprintf("%s.%d", path, i)
				if inner, ok := entry.Data.(position.Mapping); ok {
					paths = append(paths, a.mapping(entries, inner, "", path)...)
				} else {
					paths = append(paths, path)
				}
			}
		default:
			switch { // the rules in Go check the content of a tree
			case kind == KindTree && isMapping:
				v.Data = position.Mapping{}
			case kind == KindTree && isList:
				v.Data = []position.Value{}
			}
			for _, below := range a.value(constraint, v, prefix+key) {
				paths = append(paths, path+below)
			}
		}
	}
	return paths
}

// kind returns the kind of a key, and "" for a key that only pools have.
func (a constraintChecker) kind(key string) Kind {
	if f := a.schema.byKey[key]; f != nil {
		return f.Kind
	}
	return ""
}

// within returns the constraint of a key of a mapping. A key has the same constraint at the
// top level and in every pool.
func (a constraintChecker) within(mapping cue.Value, last, key string) cue.Value {
	v, known := a.constraints[key]
	if !known {
		v = mapping.LookupPath(cue.MakePath(cue.Str(last).Optional()))
		if !v.Exists() {
			v = mapping.LookupPath(cue.MakePath(cue.Str(last).Required()))
		}
		a.constraints[key] = v
	}
	return v
}

// value returns the invalid paths in a value.
func (a constraintChecker) value(constraint cue.Value, v position.Value, key string) []string {
	plain := v.Plain()
	id := fmt.Sprintf("%s\x00%T\x00%#v", key, plain, plain) // 2 and 2.0 look the same without their types
	below, known := a.cache[id]
	if known {
		return below
	}
	depth := strings.Count(key, ".") + 1
	for _, e := range errors.Errors(constraint.Unify(a.schema.context.Encode(plain)).Validate(cue.Concrete(true))) {
		steps := e.Path()
		if len(steps) > 0 && strings.HasPrefix(steps[0], "#") {
			steps = steps[1:]
		}
		path := ""
		for _, step := range steps[min(depth, len(steps)):] {
			path += "." + step
		}
		below = append(below, path)
	}
	if slices.ContainsFunc(below, func(path string) bool { return path != "" }) {
		below = slices.DeleteFunc(below, func(path string) bool { return path == "" })
	}
	a.cache[id] = below
	return below
}
