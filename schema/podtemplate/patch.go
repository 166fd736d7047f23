package podtemplate

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// text returns the text of a key, empty if there is none.
func text(t position.Mapping, key string) string {
	word, _ := t[key].Data.(string)
	return word
}

// directive checks a key of a mapping that steers the merge.
func (c *checker) directive(t position.Mapping, key string, fields map[string]*valueType, s step) {
	v := t[key]
	at := position.Join(s.path, position.SafeName(key))
	name, target, _ := strings.Cut(key, "/")
	if target != "" {
		at = position.Join(s.path, name)
	}
	f := fields[target]
	switch {
	case key == "$patch":
		c.verb(v, at)
	case key == "$retainKeys":
		c.retained(t, v, at)
	case name == "$setElementOrder" && f != nil && f.kind == kindList && f.merges:
		c.ordered(t, v, target, f.mergeKey, at)
	case name == "$deleteFromPrimitiveList" && f != nil && f.kind == kindList && f.entry.kind == kindLeaf:
		if _, ok := v.Data.([]position.Value); !ok {
			c.report(position.RulePodTemplate, v.At, at, "must be a list", "")
		}
	case name == "$setElementOrder":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of this mapping whose entries merge",
			"write such as $setElementOrder/containers")
	case name == "$deleteFromPrimitiveList":
		c.report(position.RulePodTemplate, v.Key, at, "must name a list of plain values of this mapping",
			"write such as $deleteFromPrimitiveList/finalizers")
	default:
		c.unknown(key, v, "", s)
	}
}

// verb checks what $patch says.
func (c *checker) verb(v position.Value, at string) {
	switch v.Data {
	case "replace", "delete":
	case "merge":
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete",
			"remove the line: merging is what happens without it")
	default:
		c.report(position.RulePodTemplate, v.At, at, "must be replace or delete", "")
	}
}

// retained checks that $retainKeys keeps what the mapping itself sets.
func (c *checker) retained(t position.Mapping, v position.Value, at string) {
	list, ok := v.Data.([]position.Value)
	if !ok {
		c.report(position.RulePodTemplate, v.At, at, "must be a list", "write the keys that are to stay")
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
			c.report(position.RulePodTemplate, v.At, at, "must name every key that is set beside it",
				"add "+position.SafeName(key))
		}
	}
}

// ordered checks that $setElementOrder names the entries of the list beside it in
// their order.
func (c *checker) ordered(t position.Mapping, v position.Value, target, mergeKey, at string) {
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
				"must hold entries such as - name: app, with the key of the list", "")
			return
		}
		names = append(names, name)
	}
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

// entryDirective checks an entry of a list that steers the merge, and reports
// whether it is one.
func (c *checker) entryDirective(t position.Mapping, v position.Value, f *valueType, s step) bool {
	verb, ok := t["$patch"]
	if !ok {
		return false
	}
	c.verb(verb, position.Join(s.path, "$patch"))
	switch {
	case verb.Data == "delete" && t[f.mergeKey].Data == nil:
		c.report(position.RulePodTemplate, v.At, s.path, "needs "+f.mergeKey, "it tells which entry is to be deleted")
	case verb.Data == "replace" && len(t) > 1 && text(t, "name") != mainContainer:
		c.warn(v.At, s.path, "what stands beside $patch: replace in one entry is ignored",
			"write it as an entry of its own")
	}
	return true
}
