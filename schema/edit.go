package schema

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Change is the new value of one key for [Edit].
type Change struct {
	Key     string // of the top level, not empty
	Value   string
	Comment string // sentences for a comment above the key if the file lacks the key
}

// Edit sets keys in the text of a configuration file, one after another, and returns the
// new text. The content may be empty; its values are not checked.
//
//  1. A key that already has the value is not changed, so a second edit changes nothing.
//  2. The line of a key is parsed and encoded alone, with the new value and the comment after
//     it. The encoder would remove empty lines and change the indentation of a whole file.
//  3. A new key is added at the end of the file.
//  4. The keys and values of the result are compared with the expected ones.
//
// Edit returns an error if this is not possible: the file is not one mapping without brackets,
// or the old value is a list, a mapping, an alias, or longer than a line. The errors are of type
// [position.Problems]; they name no file and quote no value.
func Edit(content []byte, changes []Change) ([]byte, error) {
	var err error
	for _, change := range changes {
		if content, err = set(content, change); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// Texts returns the texts of the scalar values of a configuration file, by top-level key. The
// values are not checked, and may be secrets. Texts returns an error if the content is not one
// document with a mapping.
func Texts(content []byte) (map[string]string, error) {
	root, err := topLevel(content)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for i := 0; i < len(root.Content); i += 2 {
		value := root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind == yaml.ScalarNode {
			texts[root.Content[i].Value] = value.Value
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

// topLevel returns the mapping of a file, which is empty if the file has only comments.
func topLevel(content []byte) (*yaml.Node, error) {
	text, problem := position.CheckText("", content)
	if problem != nil {
		return nil, position.Problems{*problem}
	}
	documents, problem := position.Decode("", text, 2)
	switch {
	case len(documents) > 1:
		return nil, notEdited(documents[1], "", "the file must be one document",
			"remove the line --- and everything after it")
	case problem != nil:
		return nil, position.Problems{*problem}
	case len(documents) == 0:
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}, nil
	}
	root := documents[0].Content[0]
	switch {
	case root.Kind == yaml.MappingNode:
		return root, nil
	case root.Kind == yaml.ScalarNode && root.Value == "" && root.ShortTag() == "!!null":
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}, nil
	}
	return nil, notEdited(root, "", "the file must be a mapping of keys to values", hintForMapping)
}

func notEdited(n *yaml.Node, path, message, hint string) position.Problems {
	return position.Problems{{Rule: position.RuleSyntax, Line: n.Line, Column: n.Column, Path: path, Message: message,
		Hint: hint}}
}

// set returns the content with one change, by the rules of [Edit].
func set(content []byte, change Change) ([]byte, error) {
	root, err := topLevel(content)
	if err != nil {
		return nil, err
	}
	key, value := &yaml.Node{}, &yaml.Node{}
	if !utf8.ValidString(change.Value) || key.Encode(change.Key) != nil || value.Encode(change.Value) != nil {
		return nil, position.Problems{{Rule: position.RuleValue, Path: change.Key, Message: "the value is not UTF-8",
			Hint: "write it as plain text"}}
	}
	at, err := find(root, change.Key)
	if err != nil {
		return nil, err
	}

	edited, expected := []byte(nil), slices.Clone(root.Content)
	place := root
	switch {
	case root.Style&yaml.FlowStyle != 0:
		return nil, notEdited(root, "", "a file in brackets, such as JSON, cannot be edited",
			"write each key on a line of its own, without brackets and commas")
	case at < 0: // 3.
		key.HeadComment = strings.Join(printable.Wrap(change.Comment, "", "", 100-len("# ")), "\n")
		expected = append(expected, key, value)
		edited = appendPair(content, key, value, root.Column-1)
	case sameScalar(root.Content[at+1], value): // 1.
		return content, nil
	default: // 2.
		place = root.Content[at+1]
		if place.Kind == yaml.SequenceNode || place.Kind == yaml.MappingNode {
			return nil, notEdited(place, change.Key, "is a list or a mapping, which cannot be replaced",
				"remove it, and try again")
		}
		expected[at+1] = value
		edited = replaceValue(content, root.Content[at], place, value)
	}

	// 4.
	if after, err := topLevel(edited); err != nil || !slices.EqualFunc(expected, after.Content, sameNode) {
		return nil, notEdited(place, change.Key, "cannot be set without changing other parts of the file",
			"write it manually, as a key and a value on one line")
	}
	return edited, nil
}

// find returns the index of a key in the content of a mapping, or -1.
func find(root *yaml.Node, name string) (int, error) {
	at := -1
	for i := 0; i < len(root.Content); i += 2 {
		key := root.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.Value != name:
		case at >= 0:
			return -1, notEdited(key, name, fmt.Sprintf("duplicate key; first set on line %d", root.Content[at].Line),
				"keep one of the two")
		default:
			at = i
		}
	}
	return at, nil
}

// appendPair returns the content with a key at the end, after an empty line if the key has a comment.
func appendPair(content []byte, key, value *yaml.Node, indent int) []byte {
	newline := "\n"
	if bytes.Contains(content, []byte("\r\n")) {
		newline = "\r\n"
	}
	content = slices.Clone(content)
	if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
		content = append(content, newline...)
	}
	if len(content) > 0 && key.HeadComment != "" {
		content = append(content, newline...)
	}
	return append(content, encodePair(key, value, strings.Repeat(" ", indent), newline)+newline...)
}

// replaceValue returns the content with another value in the line of a key, or nil if the key
// and its value are not exactly one line.
func replaceValue(content []byte, key, old, value *yaml.Node) []byte {
	lines := bytes.SplitAfter(content, []byte("\n"))
	if key.Line > len(lines) {
		return nil
	}
	line := lines[key.Line-1]
	alone, err := topLevel(line)
	if err != nil || !slices.EqualFunc(alone.Content, []*yaml.Node{key, old}, sameNode) {
		return nil
	}
	value.LineComment = alone.Content[1].LineComment
	indent := line[:len(line)-len(bytes.TrimLeft(line, "\uFEFF "))]
	newline := line[len(bytes.TrimRight(line, "\r\n")):]
	lines[key.Line-1] = []byte(encodePair(alone.Content[0], value, string(indent), string(newline)) + string(newline))
	return bytes.Join(lines, nil)
}

// encodePair returns a key and its value as indented lines, without the last line end.
func encodePair(key, value *yaml.Node, indent, newline string) string {
	pair := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{key, value}}
	text, _ := yaml.Marshal(pair) // on an error it is empty, which set does not accept
	return indent + strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", newline+indent)
}

// sameScalar compares two scalars by type and text, regardless of their quotes. It returns
// false if a has an anchor.
func sameScalar(a, b *yaml.Node) bool {
	return a.Kind == yaml.ScalarNode && a.Anchor == "" && sameNode(a, b)
}

// sameNode compares two nodes with their content. It compares aliases by name, because
// equal names mean equal values if the anchors are equal.
func sameNode(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Anchor == b.Anchor && a.Value == b.Value && a.ShortTag() == b.ShortTag() &&
		slices.EqualFunc(a.Content, b.Content, sameNode)
}
