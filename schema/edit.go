package schema

import (
	"bytes"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Change is the new value of one key for [Edit].
type Change struct {
	Key     string // of the top level, not empty
	Value   any    // a string, a bool or an int
	Comment string // sentences for a comment above the key if the file lacks the key
}

// Edit sets keys in the text of a configuration file, one after another, and returns the
// new text. It keeps every other byte: comments, order, indentation, line endings and a byte
// order mark. JSON stays JSON. A new value replaces the old one. A new key is added at the
// end, or before all keys if the last value would include it. In a mapping in brackets, a new
// key is added at the beginning. A key that already has the value is not changed, so a second
// edit changes nothing.
//
// The content may be empty. Otherwise it must be one YAML document with a mapping, whose
// values are not checked. Edit returns an error if the content is not such a document, if it
// sets the key of a change twice, or if the old value is not a plain one (it is a list, a
// mapping, or has an anchor or a tag). Edit parses the result, and returns an error if the
// edit would change anything else. These errors are of type [position.Problems]; they name no
// file and quote no value.
func Edit(content []byte, changes []Change) ([]byte, error) {
	newline := newlineOf(content) // before the first change, which may remove the only line end
	for _, change := range changes {
		p, err := readPage(content)
		if err != nil {
			return nil, err
		}
		p.newline = newline
		if content, err = p.set(change); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// Texts returns the texts of the scalar values of a configuration file, by top-level key. The
// values are not checked, and may be secrets. Texts returns the same error as [Edit] if the
// content is not a document that Edit accepts.
func Texts(content []byte) (map[string]string, error) {
	p, err := readPage(content)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for key, value := range p.pairs() {
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind == yaml.ScalarNode {
			texts[key.Value] = value.Value
		}
	}
	return texts, nil
}

// TopLevelScalar returns the value of a top-level key of a configuration file as text. It is
// for files that Load rejects: everything else in the file may be invalid. The value is
// empty if the key is missing or has no scalar value.
//
// If the file is not a YAML document, each line without indentation is parsed as a separate
// document. So a line such as "key: value" is found regardless of the lines around it.
func TopLevelScalar(content []byte, key string) string {
	if t, _, _ := position.Parse("", content, ""); t != nil {
		return scalarOf(t, key)
	}
	for line := range bytes.Lines(content) {
		if line[0] == ' ' || line[0] == '\t' || !bytes.Contains(line, []byte(key)) {
			continue
		}
		t, _, _ := position.Parse("", line, "")
		if value := scalarOf(t, key); value != "" {
			return value
		}
	}
	return ""
}

// scalarOf returns the value of a key as text, empty if it has no scalar value.
func scalarOf(t position.Mapping, key string) string {
	switch data := t[key].Data.(type) {
	case nil, position.Mapping, []position.Value:
		return ""
	default:
		return fmt.Sprint(data)
	}
}

func notEdited(n *yaml.Node, path, message, hint string) position.Problems {
	return position.Problems{{Rule: position.RuleSyntax, Line: n.Line, Column: n.Column, Path: path, Message: message,
		Hint: hint}}
}

// set returns the text with one change. If several edits are possible, it uses the first
// one that changes nothing else.
func (p *page) set(change Change) ([]byte, error) {
	// Find the key.
	written, want, err := asScalar(change.Value)
	if err != nil {
		return nil, err
	}
	var key, old *yaml.Node
	for k, v := range p.pairs() {
		if k.Kind != yaml.ScalarNode || k.Value != change.Key {
			continue
		}
		if old != nil {
			return nil, notEdited(k, change.Key, fmt.Sprintf("duplicate key; first set on line %d", key.Line),
				"keep one of the two")
		}
		key, old = k, v
	}

	// Collect the possible edits.
	var candidates [][]edit
	switch {
	case old == nil && p.flow():
		candidates = p.prependFlow(change.Key, want)
	case old == nil:
		candidates = p.append(change, written)
	case sameScalar(old, want):
		return p.whole, nil
	case old.Kind == yaml.SequenceNode || old.Kind == yaml.MappingNode:
		return nil, notEdited(old, change.Key, "is a list or a mapping, which cannot be replaced",
			"remove it, and try again")
	case p.flow() && key.Style&yaml.DoubleQuotedStyle != 0:
		candidates = p.replace(old, asJSON(want))
	default:
		candidates = p.replace(old, written)
	}

	// Use the first of them that changes only this key.
	for _, candidate := range candidates {
		text := p.apply(candidate)
		if after, err := readPage(text); err == nil && p.differsOnly(after, change.Key, want) {
			return text, nil
		}
	}
	at := &yaml.Node{Line: 1, Column: 1}
	if old != nil {
		at = old
	}
	return nil, notEdited(at, change.Key, "cannot be set without changing other parts of the file", "set it manually")
}

// differsOnly reports whether the page after sets the key once, to the value want, and
// otherwise has the same keys and values as p.
func (p *page) differsOnly(after *page, key string, want *yaml.Node) bool {
	var before, now []*yaml.Node
	for k, v := range p.pairs() {
		if k.Value != key || k.Kind != yaml.ScalarNode {
			before = append(before, k, v)
		}
	}
	found := 0
	for k, v := range after.pairs() {
		if k.Value == key && k.Kind == yaml.ScalarNode && sameScalar(v, want) {
			found++
			continue
		}
		now = append(now, k, v)
	}
	return found == 1 && slices.EqualFunc(before, now, sameNode)
}

// sameScalar compares two scalars by type and text, regardless of their quotes. It returns
// false if a has an anchor.
func sameScalar(a, b *yaml.Node) bool {
	return a.Kind == yaml.ScalarNode && b.Kind == yaml.ScalarNode && a.Anchor == "" && a.Value == b.Value &&
		a.ShortTag() == b.ShortTag()
}

// sameNode compares two nodes with their content. It compares aliases by name, because
// equal names mean equal values if the anchors are equal.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Anchor == b.Anchor && a.Value == b.Value && a.ShortTag() == b.ShortTag() &&
		slices.EqualFunc(a.Content, b.Content, sameNode)
}
