package podtemplate

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// text returns the string value of a key, or an empty string if the key has no such value.
func text(t position.Mapping, key string) string {
	text, _ := t[key].Data.(string)
	return text
}

// directive checks a key that controls the merge of its mapping.
func (c *checker) directive(t position.Mapping, key string, fields map[string]*valueType, s step) {
	// A directive may name the list that it applies to, after a slash.
	v := t[key]
	at := position.Join(s.path, position.SafeName(key))
	name, target, _ := strings.Cut(key, "/")
	if target != "" {
		at = position.Join(s.path, name)
	}

	f := fields[target]
	switch {
	case key == "$patch":
		c.patchDirective(v, at)
	case key == "$retainKeys":
		c.retainKeys(t, v, at)
	case name == "$setElementOrder" && f != nil && f.kind == kindList && f.merges:
		c.elementOrder(t, v, target, f.mergeKey, at)
	case name == "$deleteFromPrimitiveList" && f != nil && f.kind == kindList && f.entry.kind == kindLeaf:
		if _, ok := v.Data.([]position.Value); !ok {
			c.report(position.RulePodTemplate, v.At, at, "must be a list", "")
		}
	case name == "$setElementOrder":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of this mapping whose entries merge",
			"for example $setElementOrder/containers")
	case name == "$deleteFromPrimitiveList":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of plain values of this mapping",
			"for example $deleteFromPrimitiveList/finalizers")
	default:
		c.unknown(key, v, "", s)
	}
}

// patchDirective checks the value of $patch.
func (c *checker) patchDirective(v position.Value, at string) {
	switch v.Data {
	case "replace", "delete":
	case "merge":
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete",
			"remove the line: merging is the default")
	default:
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete", "")
	}
}

// retainKeys checks that $retainKeys contains every key that the mapping sets.
func (c *checker) retainKeys(t position.Mapping, v position.Value, at string) {
	list, ok := v.Data.([]position.Value)
	if !ok {
		c.report(position.RulePodTemplate, v.At, at, "must be a list", "list the keys to keep")
		return
	}
	var kept []string
	for _, entry := range list {
		name, ok := entry.Data.(string)
		if !ok {
			c.report(position.RulePodTemplate, entry.At, at, "must be a list of keys", "")
		}
		kept = append(kept, name)
	}
	for key, inner := range t {
		if inner.Data != nil && !strings.HasPrefix(key, "$") && !slices.Contains(kept, key) {
			c.report(position.RulePodTemplate, v.At, at, "must name every key that is set in this mapping",
				"add "+position.SafeName(key))
		}
	}
}

// elementOrder checks $setElementOrder: it must name the entries of the list target in the
// same mapping, in the order of that list.
func (c *checker) elementOrder(t position.Mapping, v position.Value, target, mergeKey, at string) {
	// Read the names in $setElementOrder: the merge keys of entries, or plain values.
	order, ok := v.Data.([]position.Value)
	if !ok {
		c.report(position.RulePodTemplate, v.At, at, "must be a list", "")
		return
	}
	label := func(entry position.Value) any {
		if mergeKey == "" {
			return entry.Data
		}
		inner, _ := entry.Data.(position.Mapping)
		return inner[mergeKey].Data
	}
	var names []any
	for _, entry := range order {
		name := label(entry)
		switch name.(type) {
		case nil, position.Mapping, []position.Value:
			c.report(position.RulePodTemplate, entry.At, at,
				"must contain entries such as - name: app, with the merge key of the list", "")
			return
		}
		names = append(names, name)
	}

	// The entries of the list must be among the names, in the same order.
	list, _ := t[target].Data.([]position.Value)
	for _, entry := range list {
		inner, _ := entry.Data.(position.Mapping)
		if _, special := inner["$patch"]; special || len(names) == 0 && len(order) == 0 {
			continue
		}
		switch name := label(entry).(type) {
		case nil, position.Mapping, []position.Value:
		default:
			found := slices.Index(names, name)
			if found < 0 {
				c.report(position.RulePodTemplate, v.At, at, "must name the entries of "+target+", in their order", "")
				return
			}
			names = names[found+1:]
		}
	}
}

// entryDirective checks an entry of a list if the entry has the key $patch. It returns
// whether the entry has this key.
func (c *checker) entryDirective(t position.Mapping, v position.Value, f *valueType, s step) bool {
	directive, ok := t["$patch"]
	if !ok {
		return false
	}
	c.patchDirective(directive, position.Join(s.path, "$patch"))
	switch {
	case directive.Data == "delete" && t[f.mergeKey].Data == nil:
		c.report(position.RulePodTemplate, v.At, s.path, "needs "+f.mergeKey, "it selects the entry to delete")
	case directive.Data == "replace" && len(t) > 1 && text(t, "name") != mainContainer:
		c.warn(v.At, s.path, "other keys are ignored in an entry with $patch: replace",
			"move them to a separate entry")
	}
	return true
}
