package schema

import (
	"bytes"
	"encoding/json"
	"slices"
)

// ordered is a JSON object that keeps its order: a person reads it, too.
type ordered []member

type member struct {
	key   string
	value any
}

// MarshalJSON writes the members in their order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encoder.Encode(m.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encoder.Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o ordered) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// merge makes one object of two that must hold at once, if no key of theirs is in
// the way of another. A whole number is a number.
func merge(a, b ordered) (ordered, bool) {
	merged := slices.Clone(a)
	for _, m := range b {
		i := slices.IndexFunc(merged, func(other member) bool { return other.key == m.key })
		switch {
		case i < 0:
			merged = append(merged, m)
		case m.key == "type" && merged[i].value == m.value:
		case m.key == "type" && merged[i].value == "integer" && m.value == "number":
		case m.key == "type" && merged[i].value == "number" && m.value == "integer":
			merged[i] = m
		case m.key == "minimum" || m.key == "maximum": // the later one is the narrower: CUE writes kinds first
			merged[i] = m
		default:
			return a, false
		}
	}
	return merged, true
}

// nullable lets null stand for the value: a null takes a key away.
func nullable(o ordered) ordered {
	if len(o) == 0 {
		return o
	}
	kind, plain := o.get("type").(string)
	for _, m := range o {
		if m.key == "$ref" || m.key == "anyOf" || m.key == "allOf" || m.key == "enum" || m.key == "not" {
			plain = false
		}
	}
	if !plain {
		return ordered{{"anyOf", []any{o, ordered{{"type", "null"}}}}}
	}
	either := slices.Clone(o)
	either[slices.IndexFunc(o, func(m member) bool { return m.key == "type" })] = member{"type", []string{kind, "null"}}
	return either
}
