package patch

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Change is one difference between two Pods.
type Change struct {
	// Path names a field: spec.containers[pulumi-workflow].resources.requests.cpu.
	// In brackets stands the merge key of an element, or a key of a mapping that
	// has other characters than letters, digits, dashes and underscores.
	Path string `json:"path"`

	From any `json:"from,omitempty"` // as in a [Document]; nil if it is added
	To   any `json:"to,omitempty"`   // nil if it is removed
}

// String returns the change as one line. Long values are cut.
func (c Change) String() string {
	from, to := shown(c.From), shown(c.To)
	switch {
	case c.From == nil:
		return fmt.Sprintf("%s: added %s", c.Path, to)
	case c.To == nil:
		return fmt.Sprintf("%s: removed %s", c.Path, from)
	case from == to: // secrets, or values that are cut
		return fmt.Sprintf("%s: %s (changed)", c.Path, from)
	default:
		return fmt.Sprintf("%s: %s -> %s", c.Path, from, to)
	}
}

// longestValue is the number of bytes of a value in a line of text.
const longestValue = 100

// shown returns a value for a line of text: text as it is where it is one plain
// word, everything else as JSON.
func shown(value any) string {
	text, isText := value.(string)
	if concealed, ok := value.(secret.String); ok {
		text, isText = concealed.String(), true
	}
	if !isText || strings.IndexFunc(text, isUnusual) >= 0 || text == "" {
		var b strings.Builder
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			panic(err) // data of JSON
		}
		text = strings.TrimSuffix(b.String(), "\n")
	}
	if len(text) > longestValue {
		text = strings.ToValidUTF8(text[:longestValue-len("...")], "") + "..."
	}
	return text
}

// isUnusual reports whether a character makes text hard to tell from its
// surroundings.
func isUnusual(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '{' }

// Changes returns what differs in another document, sorted by the order of the
// keys; it is empty exactly if both are equal.
//
//  1. Mappings are compared key by key. One that is there on one side only counts
//     as empty on the other, so that each of its keys is named.
//  2. Lists that a strategic merge patch merges are compared by their merge key.
//     An element that is there on one side only is one change. Another order of the
//     elements that both have is one change as well.
//  3. All else is compared as a whole.
func (d Document) Changes(to Document) []Change {
	schema, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
	if err != nil {
		panic(err) // it is a struct
	}
	c := comparison{}
	c.fields("", d, to, schema)
	return c.changes
}

// comparison collects the changes between two documents.
type comparison struct{ changes []Change }

// add adds a change.
func (c *comparison) add(path string, from, to any) {
	c.changes = append(c.changes, Change{Path: path, From: from, To: to})
}

// fields compares two mappings. Schema is nil where elements of lists have no merge
// key.
func (c *comparison) fields(path string, from, to map[string]any, schema strategicpatch.LookupPatchMeta) {
	all := maps.Clone(from)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, to)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		c.value(at(path, key), key, from[key], to[key], schema)
	}
}

// value compares the values of one key, of which nil is an absent one.
func (c *comparison) value(path, key string, from, to any, schema strategicpatch.LookupPatchMeta) {
	if reflect.DeepEqual(from, to) {
		return
	}

	// 1. Mappings.
	before, isMapping := from.(map[string]any)
	after, becomesMapping := to.(map[string]any)
	if len(before)+len(after) > 0 && (isMapping || from == nil) && (becomesMapping || to == nil) {
		c.fields(path, before, after, below(schema, key))
		return
	}

	// 2. Lists that merge.
	list, isList := from.([]any)
	other, becomesList := to.([]any)
	if schema != nil && len(list)+len(other) > 0 && (isList || from == nil) && (becomesList || to == nil) {
		within, meta, err := schema.LookupPatchMetadataForSlice(key)
		if err == nil && c.elements(path, list, other, within, meta.GetPatchMergeKey()) {
			return
		}
	}

	// 3. All else.
	c.add(path, from, to)
}

// below returns the schema of a mapping in another; nil if it is not known.
func below(schema strategicpatch.LookupPatchMeta, key string) strategicpatch.LookupPatchMeta {
	if schema == nil {
		return nil
	}
	within, _, err := schema.LookupPatchMetadataForStruct(key)
	if err != nil {
		return nil
	}
	return within
}

// elements compares two lists by a merge key. It adds nothing and returns false if
// an element has none, or the same as another one.
func (c *comparison) elements(
	path string, from, to []any, schema strategicpatch.LookupPatchMeta, key string,
) bool {
	before, beforeKeys, ok := byKey(from, key)
	after, afterKeys, okAfter := byKey(to, key)
	if !ok || !okAfter {
		return false
	}

	// Compare elements of the same key.
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(beforeKeys, afterKeys)))) {
		old, was := before[name]
		new, is := after[name]
		switch element := path + "[" + name + "]"; {
		case !was:
			c.add(element, nil, new)
		case !is:
			c.add(element, old, nil)
		default:
			c.fields(element, old, new, schema)
		}
	}

	// Compare the order of the elements that both have.
	common := func(keys []string) (both []any) {
		for _, name := range keys {
			if before[name] != nil && after[name] != nil {
				both = append(both, name)
			}
		}
		return both
	}
	if was, is := common(beforeKeys), common(afterKeys); !slices.Equal(was, is) {
		c.add(path+"[*]."+key, was, is)
	}
	return true
}

// byKey returns the elements of a list by the text of their merge key, and the
// keys in their order. Ok is false if this is not possible.
func byKey(list []any, key string) (elements map[string]map[string]any, keys []string, ok bool) {
	elements = make(map[string]map[string]any, len(list))
	for _, one := range list {
		fields, _ := one.(map[string]any)
		value, there := fields[key]
		name := shown(value)
		switch value.(type) {
		case string, int64, secret.String:
		default:
			there = false
		}
		if !there || elements[name] != nil {
			return nil, nil, false
		}
		elements[name], keys = fields, append(keys, name)
	}
	return elements, keys, true
}

// at returns the path of a key of a mapping.
func at(path, key string) string {
	simple := strings.TrimFunc(key, func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}) == ""
	switch {
	case !simple && strings.ContainsFunc(key, isUnusual), key == "":
		return path + "[" + strconv.Quote(key) + "]"
	case !simple:
		return path + "[" + key + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}
