package jsonschema

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Object is a JSON object that keeps the order of its members, because people read
// it too.
type Object []Member

// Member is a name and a value of an object.
type Member struct {
	Name  string
	Value any
}

// MarshalJSON returns the object with its members in order.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encoder.Encode(m.Name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encoder.Encode(m.Value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// With returns the object with another member at its end.
func (o Object) With(name string, value any) Object {
	return append(slices.Clip(o), Member{name, value})
}

// get returns the value of a member, or nil.
func (o Object) get(key string) any {
	for _, m := range o {
		if m.Name == key {
			return m.Value
		}
	}
	return nil
}

// merge returns one schema for values that match both of two, or false if members of
// the two conflict. An integer is also a number.
func merge(a, b Object) (Object, bool) {
	merged := slices.Clone(a)
	for _, m := range b {
		i := slices.IndexFunc(merged, func(other Member) bool { return other.Name == m.Name })
		switch {
		case i < 0:
			merged = append(merged, m)
		case m.Name == "type" && merged[i].Value == m.Value:
		case m.Name == "type" && merged[i].Value == "integer" && m.Value == "number":
		case m.Name == "type" && merged[i].Value == "number" && m.Value == "integer":
			merged[i] = m
		case m.Name == "minimum" || m.Name == "maximum": // the later one is narrower: CUE writes kinds first
			merged[i] = m
		default:
			return a, false
		}
	}
	return merged, true
}

// Nullable returns a schema that also matches null.
func Nullable(o Object) Object {
	if len(o) == 0 {
		return o
	}
	kind, plain := o.get("type").(string)
	for _, m := range o {
		if m.Name == "$ref" || m.Name == "anyOf" || m.Name == "allOf" || m.Name == "enum" || m.Name == "not" {
			plain = false
		}
	}
	if !plain {
		return Object{{"anyOf", []any{o, Object{{"type", "null"}}}}}
	}
	either := slices.Clone(o)
	at := slices.IndexFunc(o, func(m Member) bool { return m.Name == "type" })
	either[at].Value = []string{kind, "null"}
	return either
}
