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

	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Change is one difference between two Pods.
type Change struct {
	// Path names a field: spec.containers[pulumi-workflow].resources.requests.cpu. Brackets
	// contain the merge key of an element, or a key of a mapping with characters other than
	// letters, digits, dashes and underscores.
	Path string `json:"path"`

	From any `json:"from,omitempty"` // as in a [Document]; nil if the field was added
	To   any `json:"to,omitempty"`   // nil if the field was removed
}

// String returns the change as one line. Long values are truncated.
func (c Change) String() string {
	from, to := formatValue(c.From), formatValue(c.To)
	switch {
	case c.From == nil:
		return fmt.Sprintf("%s: added %s", c.Path, to)
	case c.To == nil:
		return fmt.Sprintf("%s: removed %s", c.Path, from)
	case from == to: // secrets, or truncated values
		return fmt.Sprintf("%s: %s (changed)", c.Path, from)
	default:
		return fmt.Sprintf("%s: %s -> %s", c.Path, from, to)
	}
}

const maxValue = 100 // bytes of a value in a line

// formatValue returns a value for one line: plain text unchanged, everything else as JSON.
func formatValue(value any) string {
	text, isText := value.(string)
	if masked, ok := value.(secret.Masked); ok {
		text, isText = masked.String(), true
	}
	if !isText || strings.IndexFunc(text, needsQuotes) >= 0 || text == "" {
		var b strings.Builder
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			panic(err) // the value was decoded from JSON
		}
		text = strings.TrimSuffix(b.String(), "\n")
	}
	return printable.Shorten(text, maxValue)
}

func needsQuotes(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '{' }

// Changes returns the differences to another document, sorted by key. It is empty if and
// only if the documents are equal.
//
//  1. Mappings are compared by key. A missing mapping counts as empty, so each key of the
//     other mapping is a change.
//  2. Lists that a strategic merge patch merges are compared by their merge key. An added
//     or removed element is one change. If the common elements have another order, this is
//     one change.
//  3. Other values are compared as a whole.
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

func (c *comparison) add(path string, from, to any) {
	c.changes = append(c.changes, Change{Path: path, From: from, To: to})
}

// fields compares two mappings. Schema is nil if elements of lists have no merge keys.
func (c *comparison) fields(path string, from, to map[string]any, schema strategicpatch.LookupPatchMeta) {
	all := map[string]any{}
	maps.Copy(all, from)
	maps.Copy(all, to)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		c.value(joinPath(path, key), key, from[key], to[key], schema)
	}
}

// value compares the values of one key. A value is nil if the mapping does not have the
// key.
func (c *comparison) value(path, key string, from, to any, schema strategicpatch.LookupPatchMeta) {
	if reflect.DeepEqual(from, to) {
		return
	}

	// 1. Mappings.
	before, isMapping := from.(map[string]any)
	after, becomesMapping := to.(map[string]any)
	if len(before)+len(after) > 0 && (isMapping || from == nil) && (becomesMapping || to == nil) {
		c.fields(path, before, after, subSchema(schema, key))
		return
	}

	//  2. Lists with a merge key.
	list, isList := from.([]any)
	other, becomesList := to.([]any)
	if schema != nil && len(list)+len(other) > 0 && (isList || from == nil) && (becomesList || to == nil) {
		within, meta, err := schema.LookupPatchMetadataForSlice(key)
		if err == nil && c.elements(path, list, other, within, meta.GetPatchMergeKey()) {
			return
		}
	}

	//  3. Other values.
	c.add(path, from, to)
}

// subSchema returns the schema of a mapping; nil if it is not known.
func subSchema(schema strategicpatch.LookupPatchMeta, key string) strategicpatch.LookupPatchMeta {
	if schema == nil {
		return nil
	}
	within, _, err := schema.LookupPatchMetadataForStruct(key)
	if err != nil {
		return nil
	}
	return within
}

// elements compares two lists by their merge key. It returns false, and adds no change, if
// an element has no merge key, or if two elements have the same one.
func (c *comparison) elements(
	path string, from, to []any, schema strategicpatch.LookupPatchMeta, key string,
) bool {
	before, beforeKeys, ok := byKey(from, key)
	after, afterKeys, okAfter := byKey(to, key)
	if !ok || !okAfter {
		return false
	}

	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(beforeKeys, afterKeys)))) {
		older, was := before[name]
		newer, is := after[name]
		switch element := path + "[" + name + "]"; {
		case !was:
			c.add(element, nil, newer)
		case !is:
			c.add(element, older, nil)
		default:
			c.fields(element, older, newer, schema)
		}
	}

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

// byKey returns the elements of a list by their merge key, and the keys in the order of the
// list. It returns false if a key is missing or used twice.
func byKey(list []any, key string) (elements map[string]map[string]any, keys []string, ok bool) {
	elements = make(map[string]map[string]any, len(list))
	for _, one := range list {
		fields, _ := one.(map[string]any)
		value, hasKey := fields[key]
		name := formatValue(value)
		switch value.(type) {
		case string, int64, secret.Masked:
		default:
			hasKey = false
		}
		if !hasKey || elements[name] != nil {
			return nil, nil, false
		}
		elements[name], keys = fields, append(keys, name)
	}
	return elements, keys, true
}

func joinPath(path, key string) string {
	simple := strings.TrimFunc(key, func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}) == ""
	switch {
	case !simple && strings.ContainsFunc(key, needsQuotes), key == "":
		return path + "[" + strconv.Quote(key) + "]"
	case !simple:
		return path + "[" + key + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}
