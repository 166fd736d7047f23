package schema

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"

	"github.com/cmwa-project/cmwa/schema/position"
)

// judge checks every value of a mapping and removes the invalid ones. CUE checks the
// constraints; the bounds of durations and quantities are checked here, because CUE
// cannot compare them.
func (l *load) judge(t position.Mapping) {
	// Constraints of CUE.
	for _, path := range l.schema.failures(l.schema.config, t) {
		f, at := l.schema.field(path)
		if f == nil {
			file, message := position.Origin{File: l.source.Path}, "is refused, and the program cannot tell why"
			l.report(position.NewError(position.RuleInternal, file, position.SafeName(path), message, ""))
			continue
		}
		if f.Kind == KindMappings {
			at = path // one entry that is out leaves the others
		}
		l.bad[at] = true
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

	// Names of pools: CUE does not report a missing one while another value is invalid.
	scopes := []string{""}
	for i, entry := range poolEntries(t) {
		scopes = append(scopes, fmt.Sprintf("pools.%d.", i))
		if own, ok := entry.Data.(position.Mapping); ok {
			if path := fmt.Sprintf("pools.%d.name", i); own["name"].Key == (position.Origin{}) && !l.bad[path] {
				l.missing(t, path)
				l.bad[path] = true
			}
		}
	}

	// Bounds of durations and quantities.
	for i := range l.schema.fields {
		f := &l.schema.fields[i]
		if f.OnlyVariable || f.Kind != KindDuration && f.Kind != KindQuantity {
			continue
		}
		for _, scope := range scopes {
			path := scope + f.Key
			v, ok := t.Get(strings.Split(path, ".")...)
			if !ok || l.bad[path] || scope != "" && !f.Pool {
				continue
			}
			if wrong := f.outOfBounds(v.Data); wrong != "" {
				l.refuse(f, v, path, wrong)
				l.bad[path] = true
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(l.bad)) {
		t.Remove(strings.Split(path, ".")...)
	}
}

// missing reports a key that must be there, at the mapping that lacks it.
func (l *load) missing(t position.Mapping, path string) {
	end := strings.LastIndexByte(path, '.')
	outer, _ := t.Get(strings.Split(path[:max(end, 0)], ".")...)
	l.report(position.NewError(position.RuleValue, outer.At, path, "must be set", ""))
}

// judgeAlone does the same for what only variables say.
func (l *load) judgeAlone(t position.Mapping) position.Mapping {
	for _, key := range l.schema.failures(l.schema.environment, t) {
		for i := range l.schema.fields {
			if f := &l.schema.fields[i]; f.OnlyVariable && f.Key == key {
				l.refuse(f, t[key], key, "must be "+f.sentence())
				delete(t, key)
			}
		}
	}
	return t
}

// refuse reports a wrong value of a field. A variable has no paths: its name
// stands in place of one.
func (l *load) refuse(f *Field, v position.Value, path, message string) {
	p := position.NewError(position.RuleValue, v.At, path, message, f.hint(v, entryPath(path)))
	if v.At.Variable != "" {
		p.Path = v.At.Variable
	}
	l.report(p)
}

// entryPath reports whether a path names an entry of a list.
func entryPath(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '.')+1:])
	return err == nil
}

// failures returns the paths at which CUE refuses a mapping, sorted, each once. A
// path of a list is left out if one within it is there. Keys that the schema does
// not know are removed from it before, see [definition.known].
//
// CUE is asked about each value by itself, and about equal values of one key once:
// no constraint looks at two keys, and to unify whole pools costs ten times as
// much, nearly all of it for the keys that they do not set.
func (d *definition) failures(constraints cue.Value, t position.Mapping) []string {
	asked := verdicts{schema: d, known: map[string][]string{}, constraints: map[string]cue.Value{}}
	paths := asked.mapping(constraints, t, "", "")
	slices.Sort(paths)
	return slices.Compact(paths)
}

// verdicts are what CUE said: by key and value, what is out, as ".3" for an entry
// of a list, or as "" for the value itself.
type verdicts struct {
	schema      *definition
	known       map[string][]string
	constraints map[string]cue.Value // by key
}

// mapping returns the paths that are out in a mapping. Its own path is at, and
// keys in it begin with prefix in the schema.
func (a verdicts) mapping(constraints cue.Value, t position.Mapping, prefix, at string) []string {
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
			if kind == KindTree && isMapping {
				v.Data = position.Mapping{} // another schema checks it
			}
			for _, below := range a.value(constraint, v, prefix+key) {
				paths = append(paths, path+below)
			}
		}
	}
	return paths
}

// kind returns the kind of a key, none for one that only pools have.
func (a verdicts) kind(key string) Kind {
	if f := a.schema.byKey[key]; f != nil {
		return f.Kind
	}
	return ""
}

// within returns the constraint of a key of a mapping. A key means the same at the
// top level and in every pool, so the first mapping that has it is asked.
func (a verdicts) within(mapping cue.Value, last, key string) cue.Value {
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

// value returns what is out in a value.
func (a verdicts) value(constraint cue.Value, v position.Value, key string) []string {
	plain := v.Plain()
	id := fmt.Sprintf("%s\x00%T\x00%#v", key, plain, plain) // 2 and 2.0 look the same without their types
	below, known := a.known[id]
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
	a.known[id] = below
	return below
}
