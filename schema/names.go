package schema

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// known removes unknown keys from a mapping and reports them. CUE does not report them
// while another value is wrong.
func (d *definition) known(t position.Mapping, at string) position.Problems {
	var problems position.Problems
	for key, v := range t {
		path := position.Join(at, key)
		f, whole := d.field(path)
		if f != nil && f.Kind == KindMapping && v.Data == nil {
			delete(t, key) // all of its keys are commented out
			continue
		}
		if f == nil || whole != path || strings.Contains(key, ".") {
			delete(t, key)
			hint, meant := d.suggestion(at, key)
			problem := position.NewWarning(position.RuleUnknownKey, v.Key, position.Join(at, position.SafeName(key)),
				"unknown key", hint)
			if meant {
				problem.Severity = position.Error
			}
			problems = append(problems, problem)
			continue
		}
		switch data := v.Data.(type) {
		case position.Mapping:
			if f.Kind == KindMapping {
				problems = append(problems, d.known(data, path)...)
			}
		case []position.Value:
			for i, entry := range data {
				if inner, ok := entry.Data.(position.Mapping); ok && f.Kind == KindMappings {
					problems = append(problems, d.known(inner, fmt.Sprintf("%s.%d", path, i))...)
				}
			}
		}
	}
	return problems
}

// renamed moves the values of old names to the keys that took their place, and
// removes keys that have no effect. A new name wins over its old one.
func (d *definition) renamed(t position.Mapping, environ map[string]string) position.Problems {
	var problems position.Problems
	for _, f := range d.fields {
		v, ok := t[f.Key]
		warn := func(rule position.Rule, message, hint string) {
			problems = append(problems, position.NewWarning(rule, v.Key, f.Key, message, hint))
		}
		switch {
		case !ok:
		case f.Ignored:
			delete(t, f.Key)
		case f.Unused != "":
			delete(t, f.Key)
			warn(position.RuleUnused, "has no effect", f.Unused)
		case f.Old != "":
			delete(t, f.Key)
			if _, both := t[f.Old]; both {
				warn(position.RuleOldName, "an old name, without effect beside "+f.Old, "remove it")
				continue
			}
			warn(position.RuleOldName, "an old name", "write "+f.Old)
			if text, ok := v.Data.(string); ok {
				v.Data = os.Expand(text, func(name string) string {
					if f := d.byVariable[name]; f != nil && f.Secret {
						return "" // the value is shown
					}
					return environ[name]
				})
			}
			t[f.Old] = v
		}
	}
	return problems
}

// suggestion finds the key that a writer may have meant: one of the same mapping
// that is spelt alike, or one of the same name elsewhere. meant reports whether
// there is such a key, so that to ignore what is written would be to ignore a
// setting. It is false, and the hint may still help, for a setting that only a
// variable has, and for a variable of the documented agent without its prefix,
// such as image_pull_policy: files of that agent may hold these.
func (d *definition) suggestion(at, key string) (hint string, meant bool) {
	if at == "" && (strings.HasPrefix(key, "x-") || strings.HasPrefix(key, ".")) {
		return "", false // by convention, a place for anchors
	}
	scope := "" // of the pool that at is in
	if rest, ok := strings.CutPrefix(at, "pools."); ok {
		index, inner, _ := strings.Cut(rest, ".")
		scope, at = "pools."+index, inner
	}
	path := position.Join(at, key)
	if end := strings.LastIndexByte(path, '.'); end > 0 && d.byKey[path] != nil {
		return fmt.Sprintf("write %s: within %s:", path[end+1:], path[:end]), true
	}
	if variable := d.variableOf(key); variable != "" && d.byKey[key] == nil {
		return "only the variable " + variable + " sets it", false
	}
	if f := d.byVariable[prefix+strings.ToUpper(key)]; f != nil && path == key && key == strings.ToLower(key) &&
		strings.ReplaceAll(f.Key, ".", "_") != key {
		outer, inner, _ := strings.Cut(f.Key, ".")
		return fmt.Sprintf("write %s: within %s:", inner, outer), false
	}
	if f := d.byKey[path]; f != nil && scope != "" && f.Old == "" && f.Unused == "" && !f.Ignored {
		return "it is for the whole agent: write it at the top level", true
	}
	if best := d.alike(scope, at, key); best != "" {
		return fmt.Sprintf("did you mean %q?", best), true
	}
	return "", false
}

// alike returns the path of the key that is spelt most like one of the mapping at,
// in a pool's scope or at the top level, and nothing if none is near.
func (d *definition) alike(scope, at, key string) string {
	siblings := map[string]string{}
	elsewhere := map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(d.byKey)) {
		f := d.byKey[path]
		if f.Old != "" || f.Unused != "" || f.Ignored {
			continue
		}
		inner, own := strings.CutPrefix(path, "pools.")
		last := inner[strings.LastIndexByte(inner, '.')+1:]
		switch rest, ok := strings.CutPrefix(inner, prefixOf(at)); {
		case ok && !strings.Contains(rest, ".") && (scope == "" && !own || scope != "" && f.Pool):
			siblings[rest] = position.Join(scope, inner)
		case f.Pool && !own:
			elsewhere[last] = position.Join(scope, path)
		case !own:
			elsewhere[last] = path
		}
	}
	best := siblings[position.Closest(key, slices.Collect(maps.Keys(siblings)))]
	if best == "" {
		best = elsewhere[strings.ToLower(key)]
	}
	if best == "" {
		best = elsewhere[position.Nearest(key, slices.Collect(maps.Keys(elsewhere)))]
	}
	return best
}

func prefixOf(at string) string {
	if at == "" {
		return ""
	}
	return at + "."
}
