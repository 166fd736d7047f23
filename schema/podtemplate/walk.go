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

// mapping checks the keys of a mapping and returns it without what is not data:
// unknown keys, directives, and the nulls that take keys away.
func (c *checker) mapping(t position.Mapping, v position.Value, ref string, s step) position.Mapping {
	fields := c.types.fields(ref)
	clean := position.Mapping{}
	if !s.plain && text(t, "$patch") == "delete" {
		return clean
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		inner := t[key]
		if strings.HasPrefix(key, "$") && !s.plain {
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
		clean[key] = c.value(inner, f, c.below(s, ref, key))
	}
	if !s.loose {
		c.needed(clean, v, ref, s)
	}
	return clean
}

// below says where the walk is one key deeper. Only the Pod, its metadata, its
// spec and the main container are there before the template.
func (c *checker) below(s step, ref, key string) step {
	s.loose = s.loose && ref == Root && (key == "metadata" || key == "spec")
	return s.to(key)
}

// needed reports what a whole object lacks.
func (c *checker) needed(t position.Mapping, v position.Value, ref string, s step) {
	for key, f := range c.types.fields(ref) {
		if !f.need {
			continue
		}
		inner, ok := t[key]
		empty := false
		switch data := inner.Data.(type) {
		case string:
			empty = data == ""
		case []position.Value:
			empty = len(data) == 0
		}
		switch {
		case !ok:
			c.report(position.RulePodTemplate, v.At, s.path, "needs "+key, "")
		case empty:
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

// longestPrefix is how long what stands before the slash of a key may be.
const longestPrefix = 253

// entries checks a mapping of any keys, such as labels.
func (c *checker) entries(t position.Mapping, f *valueType, s step) position.Mapping {
	clean := position.Mapping{}
	var pattern *regexp.Regexp
	words := ""
	if name := c.types[f.keys]; name != nil {
		pattern, words = name.leaf.pattern(), c.types.sentence(&name.leaf)
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		v := t[key]
		if strings.HasPrefix(key, "$") && !s.plain {
			c.directive(t, key, nil, s)
			continue
		}
		prefix, _, _ := strings.Cut(key, "/")
		if pattern != nil && (len(prefix) > longestPrefix && strings.Contains(key, "/") || !pattern.MatchString(key)) {
			c.report(position.RulePodTemplate, v.Key, position.Join(s.path, position.SafeName(key)),
				"the key must be "+words, "")
			continue
		}
		if v.Data == nil {
			continue
		}
		clean[key] = c.value(v, f.entry, s.into(key))
	}
	return clean
}

// list checks the entries of a list. Mappings that are directives are left empty,
// so that the others keep their places.
func (c *checker) list(list []position.Value, f *valueType, s step) []position.Value {
	clean := make([]position.Value, 0, len(list))
	for i, v := range list {
		inner := step{path: s.to(strconv.Itoa(i)).path, steps: s.to(strconv.Itoa(len(clean))).steps, plain: s.plain ||
			!f.merges}
		t, isMapping := v.Data.(position.Mapping)
		isMapping = isMapping && f.entry.kind == kindMapping
		switch {
		case v.Data == nil:
			c.report(position.RulePodTemplate, v.At, inner.path, "must have a value", "write one, or remove the dash")
			if f.entry.kind == kindMapping {
				clean = append(clean, position.Value{At: v.At, Data: position.Mapping{}})
			}
		case isMapping && !inner.plain && c.entryDirective(t, v, f, inner):
			clean = append(clean, position.Value{At: v.At, Data: position.Mapping{}})
		default:
			if isMapping {
				inner.loose = f.entry.ref == "#Container" &&
					isOwn(s.path[strings.LastIndexByte(s.path, '.')+1:], text(t, "name"))
			}
			if isMapping && f.mergeKey != "" && !inner.plain {
				c.mergeKey(t, v, f, inner)
			}
			inner.plain = inner.plain || isMapping && !inner.loose
			clean = append(clean, c.value(v, f.entry, inner))
		}
	}
	return clean
}

// mergeKey reports an entry that the merge could not tell from the others, unless
// a whole object needs the key anyway.
func (c *checker) mergeKey(t position.Mapping, v position.Value, f *valueType, s step) {
	key := c.types.fields(f.entry.ref)[f.mergeKey]
	if t[f.mergeKey].Data == nil && (key == nil || !key.need || s.loose) {
		c.report(position.RulePodTemplate, v.At, s.path, "needs "+f.mergeKey,
			"entries of this list are told apart by it")
	}
}

// unknown reports a key that no Pod has.
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

// suggestion says where an unknown key belongs, or what it may stand for.
func (c *checker) suggestion(key, ref string) string {
	fields := c.types.fields(ref)
	mean := func(word string) string { return fmt.Sprintf("did you mean %q?", word) }
	switch {
	case strings.HasPrefix(key, "$"):
		return "$patch, $retainKeys, $setElementOrder/KEY and $deleteFromPrimitiveList/KEY direct the merge, but not within what is new or replaced as a whole"
	case ref == Root && (key == "template" || key == "pod_template" || key == "podTemplate"):
		return "write what stands under it, and not the key itself"
	case ref == "#PodSecurityContext" && c.types.fields("#SecurityContext")[key] != nil:
		return "write " + key + ": within securityContext: of a container"
	case ref == "#PodSpec" && c.types.fields("#Container")[key] != nil:
		return "write " + key + ": in an entry of containers:"
	case fields[synonyms[key]] != nil:
		return mean(synonyms[key])
	}
	words := slices.Sorted(maps.Keys(fields))
	for _, outer := range words {
		if f := fields[outer]; f.kind == kindMapping && c.types.fields(f.ref)[key] != nil {
			return "write " + key + ": within " + outer + ":"
		}
	}
	if best := position.Closest(key, slices.Clone(words)); best != "" {
		return mean(best)
	}
	var ends []string
	for _, word := range words {
		long, short := strings.ToLower(word), strings.ToLower(key)
		if len(short) >= 4 && strings.HasSuffix(long, short) || len(long) >= 4 && strings.HasSuffix(short, long) {
			ends = append(ends, word)
		}
	}
	if len(ends) == 1 {
		return mean(ends[0])
	}
	return ""
}
