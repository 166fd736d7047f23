package podtemplate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// node is a value of the template and its path. Its methods return zero values for a
// missing key or a value of another type, because CUE reports wrong types.
type node struct {
	v    position.Value
	path string
}

// mapping returns the keys of a mapping and their values.
func (n node) mapping() position.Mapping {
	t, _ := n.v.Data.(position.Mapping)
	return t
}

// field returns the value of a key that the types of a Pod declare, and whether the
// template sets the key.
func (n node) field(key string) (node, bool) {
	v, ok := n.mapping()[key]
	return node{v: v, path: position.Join(n.path, key)}, ok
}

// userKey returns the value of a key that the template chooses, such as a label.
func (n node) userKey(key string) node {
	inner, _ := n.field(key)
	inner.path = position.Join(n.path, position.SafeName(key))
	return inner
}

// get returns the value at the end of a path of keys.
func (n node) get(keys ...string) node {
	for _, key := range keys {
		n, _ = n.field(key)
	}
	return n
}

func (n node) has(key string) bool {
	_, ok := n.field(key)
	return ok
}

// hasNoKeys reports whether a value is an empty mapping or no mapping at all.
func (n node) hasNoKeys() bool { return len(n.mapping()) == 0 }

// isEmptyMapping reports whether a value is an empty mapping.
func (n node) isEmptyMapping() bool {
	_, ok := n.v.Data.(position.Mapping)
	return ok && n.hasNoKeys()
}

// isEmptyCollection reports whether a value is an empty mapping or an empty list.
func (n node) isEmptyCollection() bool {
	list, isList := n.v.Data.([]position.Value)
	return n.isEmptyMapping() || isList && len(list) == 0
}

func (n node) entries() []node {
	list, _ := n.v.Data.([]position.Value)
	nodes := make([]node, len(list))
	for i, v := range list {
		nodes[i] = node{v: v, path: position.Join(n.path, strconv.Itoa(i))}
	}
	return nodes
}

func (n node) text() string {
	text, _ := n.v.Data.(string)
	return text
}

func (n node) number() (int64, bool) {
	number, ok := n.v.Data.(int)
	return int64(number), ok
}

func (n node) isTrue() bool { return n.v.Data == true }

// present returns the candidates that are keys of the mapping.
func (n node) present(candidates ...string) []string {
	return slices.DeleteFunc(slices.Clone(candidates), func(key string) bool { return !n.has(key) })
}

func (c *checker) invalid(n node, message, hint string) {
	c.report(position.RulePodTemplate, n.v.At, n.path, message, hint)
}

// exactlyOne reports a mapping that has no candidate key, or more than one. what names the
// candidates in messages.
func (c *checker) exactlyOne(n node, what string, candidates ...string) {
	switch present := n.present(candidates...); len(present) {
	case 1:
	case 0:
		c.invalid(n, "needs "+what, "write one of "+strings.Join(candidates, ", "))
	default:
		c.invalid(n, "must have one "+strings.TrimPrefix(what, "a ")+", and has "+strings.Join(present, ", "),
			"keep one of them")
	}
}

// unique reports entries that repeat the value of a key. It adds the values to seen.
func (c *checker) unique(list []node, key string, seen map[string]bool) {
	for _, entry := range list {
		v := entry.get(key)
		text := v.text()
		if text == "" {
			continue
		}
		if seen[text] {
			c.invalid(v, "is used twice", "use each once")
		}
		seen[text] = true
	}
}
