package schema

import (
	"bytes"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
)

// Change is one key that [Edit] sets.
type Change struct {
	Key     string // of the top level, not empty
	Value   any    // a string, a bool or an int
	Comment string // sentences to stand above the key if the file does not have it yet
}

// Edit sets keys in the text of a configuration file, one after another, and
// returns the new text. Whatever it does not have to touch stays byte for byte:
// comments, order, indents, line ends, a byte order mark. JSON stays JSON. A value
// takes the place of the one before it; a new key goes to the end. A key that has
// the value already is left as it is, so that a second edit changes nothing.
//
// Content may be empty. It must be one YAML document that holds a mapping; the
// values in it are not judged. The error is of type [position.Problems], with no file in
// it, and quotes nothing of the content: the content is not YAML, or the old value
// is not a plain one (a list, a mapping, something with an anchor or a tag). The
// result is read again before it is handed out, and an edit that would change
// anything else is refused in the same way.
func Edit(content []byte, changes []Change) ([]byte, error) {
	newline := newlineOf(content) // the first change may take away the only one
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

// Texts returns the text of every key at the top level of a configuration file
// whose value is one word, number or text. The values are not judged, and may be
// secrets. The error is that of [Edit].
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

// TopLevelScalar returns the value of a top-level key of a configuration file as
// text. It is for files that Load rejects: everything else in the file may be
// invalid. The value is empty if the key is missing or has no scalar value.
//
// If the file as a whole is no YAML document, each line is parsed as a document of
// its own. A line such as "key: value" in the first column is one, whatever stands
// in the lines before and after it.
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

// set returns the text with one change in it. Where a text can be put in more
// than one way, the first one counts that changes nothing else.
func (p *page) set(change Change) ([]byte, error) {
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
	var ways [][]edit
	switch {
	case old == nil && p.flow():
		ways = p.intoFlow(change.Key, want)
	case old == nil:
		ways = p.append(change, written)
	case alike(old, want):
		return p.whole, nil
	case old.Kind == yaml.SequenceNode || old.Kind == yaml.MappingNode:
		return nil, notEdited(old, change.Key, "is a list or a mapping, which is not replaced",
			"remove it, and begin again")
	case p.flow() && key.Style&yaml.DoubleQuotedStyle != 0:
		ways = p.replace(old, asJSON(want))
	default:
		ways = p.replace(old, written)
	}
	for _, way := range ways {
		text := p.apply(way)
		if after, err := readPage(text); err == nil && p.differsOnly(after, change.Key, want) {
			return text, nil
		}
	}
	at := &yaml.Node{Line: 1, Column: 1}
	if old != nil {
		at = old
	}
	return nil, notEdited(at, change.Key, "cannot be set without harm to the rest of the file", "set it by hand")
}

// differsOnly reports whether another page differs in the value of one key and
// in nothing else.
func (p *page) differsOnly(after *page, key string, want *yaml.Node) bool {
	var before, now []*yaml.Node
	for k, v := range p.pairs() {
		if k.Value != key || k.Kind != yaml.ScalarNode {
			before = append(before, k, v)
		}
	}
	found := 0
	for k, v := range after.pairs() {
		if k.Value == key && k.Kind == yaml.ScalarNode && alike(v, want) {
			found++
			continue
		}
		now = append(now, k, v)
	}
	return found == 1 && slices.EqualFunc(before, now, sameNode)
}

// alike compares two scalars by type and text, whatever their quotes.
func alike(a, b *yaml.Node) bool {
	return a.Kind == yaml.ScalarNode && b.Kind == yaml.ScalarNode && a.Anchor == "" && a.Value == b.Value &&
		a.ShortTag() == b.ShortTag()
}

// sameNode compares two nodes with all that is in them, and follows no alias: those
// of the same name mean the same where the anchors are the same.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Anchor == b.Anchor && a.Value == b.Value && a.ShortTag() == b.ShortTag() &&
		slices.EqualFunc(a.Content, b.Content, sameNode)
}
