package podtemplate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// node is a value of the template and its path. Its methods return zero values for
// a key that is missing or a value of another kind: CUE reports kinds.
type node struct {
	v    position.Value
	path string
}

// at goes on to a word of the schema.
func (n node) at(key string) (node, bool) {
	t, _ := n.v.Data.(position.Mapping)
	v, ok := t[key]
	return node{v: v, path: position.Join(n.path, key)}, ok
}

// into goes on to a key that the template chose.
func (n node) into(key string) node {
	inner, _ := n.at(key)
	inner.path = position.Join(n.path, position.SafeName(key))
	return inner
}

// get follows keys as far as there are any.
func (n node) get(keys ...string) node {
	for _, key := range keys {
		n, _ = n.at(key)
	}
	return n
}

func (n node) has(key string) bool {
	_, ok := n.at(key)
	return ok
}

// blank reports what is no mapping, or one without content.
func (n node) blank() bool {
	t, _ := n.v.Data.(position.Mapping)
	return len(t) == 0
}

// empty reports a mapping without content.
func (n node) empty() bool {
	_, ok := n.v.Data.(position.Mapping)
	return ok && n.blank()
}

// hollow reports an empty mapping or list.
func (n node) hollow() bool {
	t, isMapping := n.v.Data.(position.Mapping)
	list, isList := n.v.Data.([]position.Value)
	return isMapping && len(t) == 0 || isList && len(list) == 0
}

func (n node) entry(i int) node {
	list, _ := n.v.Data.([]position.Value)
	return node{v: list[i], path: position.Join(n.path, strconv.Itoa(i))}
}

func (n node) entries() []node {
	list, _ := n.v.Data.([]position.Value)
	nodes := make([]node, len(list))
	for i := range list {
		nodes[i] = n.entry(i)
	}
	return nodes
}

func (n node) text() string {
	word, _ := n.v.Data.(string)
	return word
}

func (n node) number() (int64, bool) {
	number, ok := n.v.Data.(int)
	return int64(number), ok
}

func (n node) yes() bool { return n.v.Data == true }

// keys returns the keys that are there of some.
func (n node) keys(some ...string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(key string) bool { return !n.has(key) })
}

func (c *checker) wrong(n node, message, hint string) {
	c.report(position.RulePodTemplate, n.v.At, n.path, message, hint)
}

// exactlyOne reports a mapping that must hold one of some keys, and no second.
func (c *checker) exactlyOne(n node, what string, some ...string) {
	switch found := n.keys(some...); len(found) {
	case 1:
	case 0:
		c.wrong(n, "needs "+what, "write one of "+strings.Join(some, ", "))
	default:
		c.wrong(n, "must have one "+strings.TrimPrefix(what, "a ")+", and has "+strings.Join(found, ", "),
			"keep one of them")
	}
}

// unique reports entries that repeat the value of a key.
func (c *checker) unique(list []node, key string, seen map[string]bool) {
	for _, entry := range list {
		v := entry.get(key)
		word := v.text()
		if word == "" {
			continue
		}
		if seen[word] {
			c.wrong(v, "is used twice", "use each once")
		}
		seen[word] = true
	}
}
