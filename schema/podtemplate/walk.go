package podtemplate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// mapping checks the keys of a mapping. It returns the mapping without unknown keys, without
// directives, and without keys whose value is null, because null removes a key.
func (c *checker) mapping(t position.Mapping, v position.Value, ref string, s step) position.Mapping {
	// A directive can delete the mapping.
	fields := c.types.fields(ref)
	clean := position.Mapping{}
	if !s.copied && text(t, "$patch") == "delete" {
		return clean
	}

	for _, key := range slices.Sorted(maps.Keys(t)) {
		inner := t[key]
		if strings.HasPrefix(key, "$") && !s.copied {
			c.directive(t, key, fields, s)
			continue
		}
		f := fields[key]
		if f == nil {
			c.unknown(key, inner, ref, s)
			continue
		}
		if inner.Data == nil {
			continue
		}
		c.used[f] = true
		clean[key] = c.value(inner, f, c.child(s, ref, key))
	}
	if !s.partial {
		c.requiredKeys(clean, v, ref, s)
	}
	return clean
}

// child returns the step to a key of a mapping. Of the mappings below the Pod, only its
// metadata and its spec are partial. list decides which entries of a list are partial.
func (c *checker) child(s step, ref, key string) step {
	s.partial = s.partial && ref == Root && (key == "metadata" || key == "spec")
	return s.field(key)
}

// requiredKeys reports the required keys that a complete object lacks.
func (c *checker) requiredKeys(t position.Mapping, v position.Value, ref string, s step) {
	for key, f := range c.types.fields(ref) {
		if !f.required {
			continue
		}
		inner, ok := t[key]
		list, isList := inner.Data.([]position.Value)
		switch {
		case !ok:
			c.report(position.RulePodTemplate, v.At, s.path, "needs "+key, "")
		case inner.Data == "", isList && len(list) == 0:
			c.report(position.RulePodTemplate, inner.At, position.Join(s.path, key), "must not be empty", "")
		}
	}
}

func (c *checker) value(v position.Value, f *valueType, s step) position.Value {
	c.locations[strings.Join(s.steps, "\x00")] = location{v: v, path: s.path, f: f}
	switch data := v.Data.(type) {
	case position.Mapping:
		switch f.kind {
		case kindMapping:
			v.Data = c.mapping(data, v, f.ref, s)
		case kindMap:
			v.Data = c.entries(data, f, s)
		}
	case []position.Value:
		if f.kind == kindList {
			v.Data = c.list(data, f, s)
		}
	}
	return v
}

// maxPrefix is the maximum length of the part of a key before its slash.
const maxPrefix = 253

// entries checks a mapping whose keys the template chooses, such as labels.
func (c *checker) entries(t position.Mapping, f *valueType, s step) position.Mapping {
	clean := position.Mapping{}
	var pattern *regexp.Regexp
	expected := ""
	if name := c.types[f.keys]; name != nil {
		pattern, expected = name.leaf.pattern(), c.types.describe(&name.leaf)
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		v := t[key]
		if strings.HasPrefix(key, "$") && !s.copied {
			c.directive(t, key, nil, s)
			continue
		}
		prefix, _, _ := strings.Cut(key, "/")
		if pattern != nil && (len(prefix) > maxPrefix && strings.Contains(key, "/") || !pattern.MatchString(key)) {
			c.report(position.RulePodTemplate, v.Key, position.Join(s.path, position.SafeName(key)),
				"the key must be "+expected, "")
			continue
		}
		if v.Data == nil {
			continue
		}
		clean[key] = c.value(v, f.entry, s.userKey(key))
	}
	return clean
}

// list checks the entries of a list. It returns an empty mapping for each entry that is a
// directive, so that the other entries keep their indexes.
func (c *checker) list(list []position.Value, f *valueType, s step) []position.Value {
	clean := make([]position.Value, 0, len(list))
	for i, v := range list {
		// The index in messages counts all entries; the index for CUE counts those of clean.
		inner := step{
			path: s.field(strconv.Itoa(i)).path, steps: s.field(strconv.Itoa(len(clean))).steps,
			copied: s.copied || !f.merges,
		}
		t, isMapping := v.Data.(position.Mapping)
		isMapping = isMapping && f.entry.kind == kindMapping

		switch {
		case v.Data == nil:
			c.report(position.RulePodTemplate, v.At, inner.path, "must have a value", "write one, or remove the dash")
			if f.entry.kind == kindMapping {
				clean = append(clean, position.Value{At: v.At, Data: position.Mapping{}})
			}
		case isMapping && !inner.copied && c.entryDirective(t, v, f, inner):
			clean = append(clean, position.Value{At: v.At, Data: position.Mapping{}})
		default:
			if isMapping {
				inner.partial = f.entry.ref == "#Container" &&
					isAgentContainer(s.path[strings.LastIndexByte(s.path, '.')+1:], text(t, "name"))
			}
			if isMapping && f.mergeKey != "" && !inner.copied {
				c.mergeKey(t, v, f, inner)
			}
			inner.copied = inner.copied || isMapping && !inner.partial
			clean = append(clean, c.value(v, f.entry, inner))
		}
	}
	return clean
}

// mergeKey reports an entry without the key that identifies the entry in the merge. If a
// complete object requires this key, requiredKeys reports the entry instead.
func (c *checker) mergeKey(t position.Mapping, v position.Value, f *valueType, s step) {
	key := c.types.fields(f.entry.ref)[f.mergeKey]
	if t[f.mergeKey].Data == nil && (key == nil || !key.required || s.partial) {
		c.report(position.RulePodTemplate, v.At, s.path, "needs "+f.mergeKey,
			"it identifies the entry of this list")
	}
}

// unknown reports a key that the types of a Pod do not declare.
func (c *checker) unknown(key string, v position.Value, ref string, s step) {
	c.report(position.RuleUnknownKey, v.Key, position.Join(s.path, position.SafeName(key)), "unknown key",
		c.suggestion(key, ref))
}

// synonyms are other names that people use for a key.
var synonyms = map[string]string{
	"environment": "env", "enviroment": "env", "variables": "env", "mounts": "volumeMounts",
	"pvc": "persistentVolumeClaim", "secretRef": "secretKeyRef",
	"configMapRef": "configMapKeyRef", "user": "runAsUser", "group": "runAsGroup",
	"grace": "terminationGracePeriodSeconds", "secrets": "secret", "http": "httpGet", "tcp": "tcpSocket",
}

// suggestion returns the hint for an unknown key: where it belongs, or a similar key.
func (c *checker) suggestion(key, ref string) string {
	fields := c.types.fields(ref)
	didYouMean := func(name string) string { return fmt.Sprintf("did you mean %q?", name) }
	switch {
	case strings.HasPrefix(key, "$"):
		return "$patch, $retainKeys, $setElementOrder/KEY and $deleteFromPrimitiveList/KEY control the merge, " +
			"and are not allowed in objects that are new or replaced"
	case ref == Root && (key == "template" || key == "pod_template" || key == "podTemplate"):
		return "remove the key, and move its content one level up"
	case ref == "#PodSecurityContext" && c.types.fields("#SecurityContext")[key] != nil:
		return "write " + key + ": under securityContext: of a container"
	case ref == "#PodSpec" && c.types.fields("#Container")[key] != nil:
		return "write " + key + ": in an entry of containers:"
	case fields[synonyms[key]] != nil:
		return didYouMean(synonyms[key])
	}

	// The key of a mapping one level deeper.
	names := slices.Sorted(maps.Keys(fields))
	for _, outer := range names {
		if f := fields[outer]; f.kind == kindMapping && c.types.fields(f.ref)[key] != nil {
			return "write " + key + ": within " + outer + ":"
		}
	}

	// A similar key, or the only key with the same ending.
	if best := position.Closest(key, slices.Clone(names)); best != "" {
		return didYouMean(best)
	}
	var suffixes []string
	for _, name := range names {
		long, short := strings.ToLower(name), strings.ToLower(key)
		if len(short) >= 4 && strings.HasSuffix(long, short) || len(long) >= 4 && strings.HasSuffix(short, long) {
			suffixes = append(suffixes, name)
		}
	}
	if len(suffixes) == 1 {
		return didYouMean(suffixes[0])
	}
	return ""
}
