package schema

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
)

// judge asks CUE about every value, and the fields about the bounds of their
// durations. It takes what is out from the table.
func (l *load) judge(t table) {
	for _, path := range l.failures(l.config, t) {
		f, entry := l.field(path)
		if f == nil {
			l.report(Problem{Rule: RuleInternal, File: l.source.Path, Path: shown(path), Message: "is refused, and the program cannot tell why"})
			continue
		}
		v, _ := t.get(strings.Split(f.Key, ".")...)
		if entry {
			index, err := strconv.Atoi(path[len(f.Key)+1:])
			if list, ok := v.data.([]value); ok && err == nil && index < len(list) {
				l.refuse(f, list[index], path, "must be "+f.entrySentence())
			}
		} else {
			l.refuse(f, v, path, "must be "+f.sentence())
		}
		l.bad[f.Key] = true
	}
	for i := range l.fields {
		f := &l.fields[i]
		path := strings.Split(f.Key, ".")
		v, ok := t.get(path...)
		if !ok || f.OnlyVariable || l.bad[f.Key] || f.Kind != KindDuration {
			continue
		}
		if wrong := f.outOfBounds(v.data); wrong != "" {
			l.refuse(f, v, f.Key, wrong)
			l.bad[f.Key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(l.bad)) {
		t.remove(strings.Split(key, ".")...)
	}
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
	p := Problem{Rule: RuleValue, File: v.at.File, Line: v.at.Line, Column: v.at.Column, Path: path, Message: message, Hint: f.hint(v)}
	if v.at.Variable != "" {
		p.Path = v.at.Variable
	}
	l.report(p)
}

// failures returns the paths at which CUE refuses a table, sorted, each once. A
// path of a list or mapping is left out if one within it is there.
func (d *definition) failures(constraints cue.Value, t table) []string {
	err := constraints.Unify(d.context.Encode(t.plain())).Validate(cue.Concrete(true))
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
