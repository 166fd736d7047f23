package position

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
)

const (
	// maxValues limits the values of a document, including those of its aliases. The
	// time that CUE needs for invalid values grows with the square of their number.
	maxValues = 5_000
	// maxDepth limits the nesting of values. Configurations and Pods need far fewer levels.
	maxDepth = 64
)

// converter turns YAML nodes into values and collects their problems.
type converter struct {
	file         string
	problems     Problems
	values       int
	limitReached bool // a limit was reached and reported
}

// Decode returns the first YAML documents of a file, at most limit. stopped is the
// problem at which the parser stopped before the limit, or nil. The caller must have
// checked the content with [CheckText].
func Decode(file string, content []byte, limit int) (documents []*yaml.Node, stopped *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for len(documents) < limit {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return documents, new(syntaxProblem(file, content, err))
		}
		documents = append(documents, &node)
	}
	return documents, nil
}

// Parse reads a file as one mapping. An empty file is an empty mapping. ok is false if
// the file cannot be used as a mapping; the problems then have the reason. A duplicate
// key is a problem, but does not make ok false. hint is the hint for a file whose content
// is not a mapping.
func Parse(file string, content []byte, hint string) (m Mapping, problems Problems, ok bool) {
	content, problem := CheckText(file, content)
	if problem != nil {
		return nil, Problems{*problem}, false
	}
	content = withoutEscapesOfJSON(content)
	documents, stopped := Decode(file, content, 3)
	if len(documents) > 1 && isEmpty(documents[1]) { // a line --- follows the first document
		documents = slices.Delete(documents, 1, 2)
	}
	d := &converter{file: file}
	switch {
	case len(documents) > 1:
		d.report(RuleSyntax, documents[1], "", "the file must be one document",
			"remove the line --- and everything after it")
		return nil, d.problems, false
	case stopped != nil:
		return nil, Problems{*stopped}, false
	case len(documents) == 0:
		return Mapping{}, nil, true
	}

	first := documents[0].Content[0]
	root := d.convert(first, "", 0)
	whole := !slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Rule != RuleDuplicateKey })
	switch data := root.Data.(type) {
	case nil:
		return Mapping{}, d.problems, whole
	case Mapping:
		return data, d.problems, whole
	default:
		if p, ok := missingSpaceIn(file, content); ok {
			return nil, append(d.problems, p), false
		}
		d.report(RuleSyntax, first, "", "the file must be a mapping of keys to values", hint)
		return nil, d.problems, false
	}
}

func isEmpty(document *yaml.Node) bool {
	n := document.Content[0]
	return n.Kind == yaml.ScalarNode && n.Value == "" && n.Anchor == "" && n.Style == 0
}

// escapes matches the escapes of JSON, except \u without a surrogate pair. The two halves of
// a surrogate pair are one match.
var escapes = regexp.MustCompile(`\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u])`)

// withoutEscapesOfJSON returns content that is not JSON unchanged. In JSON it replaces the
// escapes that the YAML library does not support, which are \/ and surrogate pairs. The
// columns after a replaced escape may differ from those of the file.
func withoutEscapesOfJSON(content []byte) []byte {
	if !json.Valid(content) {
		return content
	}
	return escapes.ReplaceAllFunc(content, func(escape []byte) []byte {
		switch {
		case string(escape) == `\/`:
			return []byte("/")
		case len(escape) == 2:
			return escape
		}
		high, _ := strconv.ParseUint(string(escape[2:6]), 16, 16)
		low, _ := strconv.ParseUint(string(escape[8:12]), 16, 16)
		return fmt.Appendf(nil, `\U%08X`, utf16.DecodeRune(rune(high), rune(low)))
	})
}

func (d *converter) report(rule Rule, n *yaml.Node, path, message, hint string) {
	d.problems = append(d.problems, NewError(rule, d.origin(n), path, message, hint))
}

func (d *converter) origin(n *yaml.Node) Origin {
	return Origin{File: d.file, Line: n.Line, Column: n.Column}
}

// convert returns the value of a node. The value of an alias has the position of the
// alias, but the entries of an aliased mapping or list keep their own.
func (d *converter) convert(n *yaml.Node, path string, depth int) Value {
	v := Value{At: d.origin(n)}
	if d.values++; d.values > maxValues || depth > maxDepth {
		if !d.limitReached {
			d.limitReached = true
			message := fmt.Sprintf("the file has more than %d values or %d levels, including those of aliases",
				maxValues, maxDepth)
			d.report(RuleSize, n, "", message, "shorten lists, or replace aliases that repeat many values")
		}
		return v
	}
	switch n.Kind {
	case yaml.AliasNode:
		v.Data = d.convert(n.Alias, path, depth+1).Data
	case yaml.SequenceNode:
		list := make([]Value, 0, len(n.Content))
		for i, entry := range n.Content {
			list = append(list, d.convert(entry, fmt.Sprintf("%s.%d", path, i), depth+1))
		}
		v.Data = list
	case yaml.MappingNode:
		v.Data = d.mapping(n, path, depth)
	default:
		v.Data = d.scalar(n, path)
	}
	return v
}

// mapping converts the keys of a node in order. A merge key (<<) does not replace a key that
// the mapping itself has.
func (d *converter) mapping(n *yaml.Node, path string, depth int) Mapping {
	m := Mapping{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content) && !d.limitReached; i += 2 {
		key, content := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			merged = append(merged, content)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			hint := ""
			if key.Kind == yaml.MappingNode && key.Style&yaml.FlowStyle != 0 {
				hint = "if this is a template, for example of Helm, vet its output"
			}
			d.report(RuleSyntax, key, path, "a key must be plain text", hint)
			continue
		}
		inner := Join(path, SafeName(key.Value))
		if earlier, ok := m[key.Value]; ok {
			message := fmt.Sprintf("duplicate key; first set on line %d", earlier.Key.Line)
			d.report(RuleDuplicateKey, key, inner, message, "keep one of the two")
			continue
		}
		v := d.convert(content, inner, depth+1)
		v.Key = d.origin(key)
		m[key.Value] = v
	}
	for _, content := range merged {
		d.merge(m, content, path, depth)
	}
	return m
}

// merge adds the keys of n to m. n is the value of a merge key: a mapping or a list of
// mappings. merge does not replace keys of m.
func (d *converter) merge(m Mapping, n *yaml.Node, path string, depth int) {
	v := d.convert(n, path, depth+1)
	sources := []Value{v}
	if list, ok := v.Data.([]Value); ok {
		sources = list
	}
	for _, source := range sources {
		more, ok := source.Data.(Mapping)
		if !ok {
			d.report(RuleSyntax, n, Join(path, "<<"), "must be a mapping or a list of mappings", "")
			return
		}
		for key, v := range more {
			if _, ok := m[key]; !ok {
				m[key] = v
			}
		}
	}
}

// coreTags are the supported types of scalars. Strings and timestamps are read as text.
var coreTags = []string{"!!null", "!!bool", "!!int", "!!float", "!!str", "!!timestamp"}

func (d *converter) scalar(n *yaml.Node, path string) any {
	tag := n.ShortTag()
	if !slices.Contains(coreTags, tag) {
		d.report(RuleSyntax, n, path, "tags are not allowed", "remove the tag, which begins with !")
		return nil
	}
	if tag == "!!str" || tag == "!!timestamp" {
		return n.Value
	}
	var data any
	if err := n.Decode(&data); err != nil {
		d.report(RuleSyntax, n, path, "the value does not match its tag", "remove the tag, which begins with !")
		return nil
	}
	if f, ok := data.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		return n.Value
	}
	return data
}
