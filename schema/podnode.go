package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// podNode is a value of the template and its path. Questions about what is not
// there, or of another kind, are answered with nothing: CUE reports kinds.
type podNode struct {
	v    position.Value
	path string
}

// at goes on to a word of the schema.
func (n podNode) at(key string) (podNode, bool) {
	t, _ := n.v.Data.(position.Mapping)
	v, ok := t[key]
	return podNode{v: v, path: position.Join(n.path, key)}, ok
}

// into goes on to a key that the template chose.
func (n podNode) into(key string) podNode {
	inner, _ := n.at(key)
	inner.path = position.Join(n.path, position.SafeName(key))
	return inner
}

// get follows keys as far as there are any.
func (n podNode) get(keys ...string) podNode {
	for _, key := range keys {
		n, _ = n.at(key)
	}
	return n
}

func (n podNode) has(key string) bool {
	_, ok := n.at(key)
	return ok
}

// blank reports what is no mapping, or one without content.
func (n podNode) blank() bool {
	t, _ := n.v.Data.(position.Mapping)
	return len(t) == 0
}

// empty reports a mapping without content.
func (n podNode) empty() bool {
	_, ok := n.v.Data.(position.Mapping)
	return ok && n.blank()
}

// hollow reports an empty mapping or list.
func (n podNode) hollow() bool {
	t, isTable := n.v.Data.(position.Mapping)
	list, isList := n.v.Data.([]position.Value)
	return isTable && len(t) == 0 || isList && len(list) == 0
}

func (n podNode) entry(i int) podNode {
	list, _ := n.v.Data.([]position.Value)
	return podNode{v: list[i], path: position.Join(n.path, strconv.Itoa(i))}
}

func (n podNode) entries() []podNode {
	list, _ := n.v.Data.([]position.Value)
	nodes := make([]podNode, len(list))
	for i := range list {
		nodes[i] = n.entry(i)
	}
	return nodes
}

func (n podNode) text() string {
	word, _ := n.v.Data.(string)
	return word
}

func (n podNode) number() (int64, bool) {
	number, ok := n.v.Data.(int)
	return int64(number), ok
}

func (n podNode) yes() bool { return n.v.Data == true }

// keys returns the keys that are there of some.
func (n podNode) keys(some ...string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(key string) bool { return !n.has(key) })
}

func (c *podCheck) wrong(n podNode, message, hint string) {
	c.report(position.RulePodTemplate, n.v.At, n.path, message, hint)
}

// exactlyOne reports a mapping that must hold one of some keys, and no second.
func (c *podCheck) exactlyOne(n podNode, what string, some ...string) {
	switch found := n.keys(some...); len(found) {
	case 1:
	case 0:
		c.wrong(n, "needs "+what, "write one of "+strings.Join(some, ", "))
	default:
		c.wrong(n, "must have one "+strings.TrimPrefix(what, "a ")+", and has "+strings.Join(found, ", "), "keep one of them")
	}
}

// unique reports entries that repeat the value of a key.
func (c *podCheck) unique(list []podNode, key string, seen map[string]bool) {
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
