package schema

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// removed has the hints for a key, its variable and a value that the schema no longer has. They
// are errors, because the agent does not do what the file requests.
var removed = map[string]string{
	"kubernetes.runner":              "remove it: the runner is always copied from kubernetes.image",
	"PULUMI_AGENT_KUBERNETES_RUNNER": "unset it: the runner is always copied from kubernetes.image",
	"kubernetes.handoff=configmap":   "write secret, or sealed, the default: many users can read a ConfigMap",
}

// removeUnknown removes unknown keys from a mapping and reports them. CUE does not report
// unknown keys while another value is invalid.
func (d *definition) removeUnknown(t position.Mapping, at string) position.Problems {
	var problems position.Problems
	for key, v := range t {
		path := position.Join(at, key)
		f, whole := d.field(path)
		if f != nil && f.Kind == KindMapping && v.Data == nil {
			delete(t, key) // a mapping without keys, for example because all of them are comments
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
				problems = append(problems, d.removeUnknown(data, path)...)
			}
		case []position.Value:
			for i, entry := range data {
				if inner, ok := entry.Data.(position.Mapping); ok && f.Kind == KindMappings {
					problems = append(problems, d.removeUnknown(inner, fmt.Sprintf("%s.%d", path, i))...)
				}
			}
		}
	}
	return problems
}

// replaceOldNames moves the values of old names to the current keys, and removes keys that
// have no effect. A current name overrides its old name.
func (d *definition) replaceOldNames(t position.Mapping, environ map[string]string) position.Problems {
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
				warn(position.RuleOldName, "an old name, which has no effect together with "+f.Old, "remove it")
				continue
			}
			warn(position.RuleOldName, "an old name", "write "+f.Old)
			if text, ok := v.Data.(string); ok {
				v.Data = os.Expand(text, func(name string) string {
					if f := d.byVariable[name]; f != nil && f.Secret {
						return "" // the result may be printed
					}
					return environ[name]
				})
			}
			t[f.Old] = v
		}
	}
	return problems
}

// suggestion returns a hint with the key that the user probably means: a key of the same
// mapping with a similar name, or a key with the same or a similar name in another mapping.
// meant reports whether there is such a key, so that ignoring the unknown key would ignore a
// setting. Three kinds of names have a hint, but meant is false. Files of Pulumi's own agent may
// contain two of them: a setting that only a variable sets, and a variable without its prefix,
// such as image_pull_policy. The values of the Helm chart contain config.
func (d *definition) suggestion(at, key string) (hint string, meant bool) {
	if at == "" && (strings.HasPrefix(key, "x-") || strings.HasPrefix(key, ".")) {
		return "", false // by convention such keys contain anchors
	}
	scope := "" // path of the pool that contains at; empty at the top level
	if inPools, ok := strings.CutPrefix(at, "pools."); ok {
		index, inner, _ := strings.Cut(inPools, ".")
		scope, at = "pools."+index, inner
	}
	path := position.Join(at, key)
	if hint := removed[path]; hint != "" {
		return hint, true
	}
	if end := strings.LastIndexByte(path, '.'); end > 0 && d.byKey[path] != nil {
		return fmt.Sprintf("write %s: within %s:", path[end+1:], path[:end]), true
	}
	if path == "config" {
		return "are these values of the Helm chart? check its output: helm template … | cmwa vet -", false
	}
	if variable := d.variableOf(key); variable != "" && d.byKey[key] == nil {
		return "no key sets this; set the variable " + variable, false
	}
	if f := d.byVariable[prefix+strings.ToUpper(key)]; f != nil && path == key && key == strings.ToLower(key) &&
		strings.ReplaceAll(f.Key, ".", "_") != key {
		outer, inner, _ := strings.Cut(f.Key, ".")
		return fmt.Sprintf("write %s: within %s:", inner, outer), false
	}
	if f := d.byKey[path]; f != nil && scope != "" && f.current() {
		return "it is for the whole agent: write it at the top level", true
	}
	if best := d.closestKey(scope, at, key); best != "" {
		return fmt.Sprintf("did you mean %q?", best), true
	}
	return "", false
}

// closestKey returns the path of the known key whose name is most similar to an unknown key
// of the mapping at, in a pool's scope or at the top level. It returns "" if no key is similar.
func (d *definition) closestKey(scope, at, key string) string {
	siblings := map[string]string{}  // keys of the same mapping
	elsewhere := map[string]string{} // the others
	for _, path := range slices.Sorted(maps.Keys(d.byKey)) {
		f := d.byKey[path]
		if !f.current() {
			continue
		}
		inner, inPool := strings.CutPrefix(path, "pools.")
		last := inner[strings.LastIndexByte(inner, '.')+1:]
		switch name, ok := strings.CutPrefix(inner, strings.TrimPrefix(at+".", ".")); {
		case ok && !strings.Contains(name, ".") && (scope == "" && !inPool || scope != "" && f.Pool):
			siblings[name] = position.Join(scope, inner)
		case f.Pool && !inPool:
			elsewhere[last] = position.Join(scope, path)
		case !inPool:
			elsewhere[last] = path
		}
	}

	// Prefer the same mapping, then the same name, then a similar name.
	best := siblings[position.Closest(key, slices.Collect(maps.Keys(siblings)))]
	if best == "" {
		best = elsewhere[strings.ToLower(key)]
	}
	if best == "" {
		best = elsewhere[position.Nearest(key, slices.Collect(maps.Keys(elsewhere)))]
	}
	return best
}
