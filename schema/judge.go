package schema

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
)

// judge asks CUE about every value, and the fields about the bounds of their
// durations and quantities. It takes what is out from the table.
func (l *load) judge(t table) {
	for _, path := range l.failures(l.config, t) {
		f, at := l.field(path)
		if f == nil {
			l.report(Problem{Rule: RuleInternal, File: l.source.Path, Path: shown(path), Message: "is refused, and the program cannot tell why"})
			continue
		}
		if f.Kind == KindMappings {
			at = path // one entry that is out leaves the others
		}
		l.bad[at] = true
		v, there := t.get(strings.Split(path, ".")...)
		switch {
		case !there:
			l.missing(t, path)
		case at != path, f.Kind == KindMappings && path != f.Key:
			l.refuse(f, v, path, "must be "+f.entrySentence())
		default:
			l.refuse(f, v, path, "must be "+f.sentence())
		}
	}
	scopes := []string{""}
	for i, entry := range t.pools() {
		scopes = append(scopes, fmt.Sprintf("pools.%d.", i))
		if own, ok := entry.data.(table); ok { // CUE is silent about it while another value is wrong
			if path := fmt.Sprintf("pools.%d.name", i); own["name"].key == (Origin{}) && !l.bad[path] {
				l.missing(t, path)
				l.bad[path] = true
			}
		}
	}
	for i := range l.fields {
		f := &l.fields[i]
		if f.OnlyVariable || f.Kind != KindDuration && f.Kind != KindQuantity {
			continue
		}
		for _, scope := range scopes {
			path := scope + f.Key
			v, ok := t.get(strings.Split(path, ".")...)
			if !ok || l.bad[path] || scope != "" && !f.Pool {
				continue
			}
			if wrong := f.outOfBounds(v.data); wrong != "" {
				l.refuse(f, v, path, wrong)
				l.bad[path] = true
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(l.bad)) {
		t.remove(strings.Split(path, ".")...)
	}
}

// missing reports a key that must be there, at the mapping that lacks it.
func (l *load) missing(t table, path string) {
	end := strings.LastIndexByte(path, '.')
	outer, _ := t.get(strings.Split(path[:max(end, 0)], ".")...)
	l.report(Problem{Rule: RuleValue, File: outer.at.File, Line: outer.at.Line, Column: outer.at.Column, Path: path, Message: "must be set"})
}

// judgeAlone does the same for what only variables say.
func (l *load) judgeAlone(t table) table {
	for _, key := range l.failures(l.environment, t) {
		for i := range l.fields {
			if f := &l.fields[i]; f.OnlyVariable && f.Key == key {
				l.refuse(f, t[key], key, "must be "+f.sentence())
				delete(t, key)
			}
		}
	}
	return t
}

// refuse reports a wrong value of a field. A variable has no paths: its name
// stands in place of one.
func (l *load) refuse(f *Field, v value, path, message string) {
	p := Problem{Rule: RuleValue, File: v.at.File, Line: v.at.Line, Column: v.at.Column, Path: path, Message: message, Hint: f.hint(v, entryPath(path))}
	if v.at.Variable != "" {
		p.Path = v.at.Variable
	}
	l.report(p)
}

// entryPath reports whether a path names an entry of a list.
func entryPath(path string) bool {
	_, err := strconv.Atoi(path[strings.LastIndexByte(path, '.')+1:])
	return err == nil
}

// failures returns the paths at which CUE refuses a table, sorted, each once. A
// path of a list or mapping is left out if one within it is there.
func (d *definition) failures(constraints cue.Value, t table) []string {
	err := constraints.Unify(d.context.Encode(d.judged(t))).Validate(cue.Concrete(true))
	var paths []string
	outer := map[string]bool{}
	for _, e := range errors.Errors(err) {
		steps := e.Path()
		if len(steps) > 0 && strings.HasPrefix(steps[0], "#") {
			steps = steps[1:]
		}
		paths = append(paths, strings.Join(steps, "."))
		for n := 1; n < len(steps); n++ {
			outer[strings.Join(steps[:n], ".")] = true
		}
	}
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool { return outer[path] })
}

// judged is what CUE sees of a table. A tree is only seen to be one: another
// schema checks it.
func (d *definition) judged(t table) map[string]any {
	plain := make(map[string]any, len(t))
	for key, v := range t {
		if f := d.byKey[key]; f != nil && f.Kind == KindTree {
			if _, ok := v.data.(table); ok {
				v.data = table{}
			}
		}
		plain[key] = v.plain()
	}
	if list, ok := plain["pools"].([]any); ok {
		for i, entry := range t["pools"].data.([]value) {
			if pool, ok := entry.data.(table); ok {
				list[i] = d.judged(pool)
			}
		}
	}
	return plain
}
