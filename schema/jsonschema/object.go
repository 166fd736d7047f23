package jsonschema

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Object is a JSON object that keeps the order of its members, because people read the
// schema too.
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

// Get returns the value of a member, or nil.
func (o Object) Get(key string) any {
	for _, m := range o {
		if m.Name == key {
			return m.Value
		}
	}
	return nil
}

// Replace returns the object with another value of a member. If there is no such member, it
// returns an equal object.
func (o Object) Replace(name string, value any) Object {
	replaced := slices.Clone(o)
	for i, m := range replaced {
		if m.Name == name {
			replaced[i].Value = value
		}
	}
	return replaced
}

// WithPatternMessage returns the schema with a message next to each pattern, also in
// alternatives, for values that do not match. The YAML language server shows the value of
// the keyword patternErrorMessage, and otherwise the pattern.
func (o Object) WithPatternMessage(message string) Object {
	with := slices.Clone(o)
	for i, m := range o {
		alternatives, ok := m.Value.([]any)
		if !ok || m.Name != "anyOf" && m.Name != "allOf" {
			continue
		}
		changed := slices.Clone(alternatives)
		for j, alternative := range changed {
			if inner, ok := alternative.(Object); ok {
				changed[j] = inner.WithPatternMessage(message)
			}
		}
		with[i].Value = changed
	}
	if o.Get("pattern") != nil {
		with = with.With("patternErrorMessage", message)
	}
	return with
}

// WithoutKeywords returns the schema without these keywords, also in its subschemas. The
// names of properties and definitions are not keywords.
func (o Object) WithoutKeywords(keywords ...string) Object {
	var kept Object
	for _, m := range o {
		if slices.Contains(keywords, m.Name) {
			continue
		}
		switch m.Name {
		case "properties", "patternProperties", "dependentSchemas", "$defs":
			if named, ok := m.Value.(Object); ok {
				subschemas := slices.Clone(named)
				for i := range subschemas {
					subschemas[i].Value = withoutKeywords(subschemas[i].Value, keywords)
				}
				m.Value = subschemas
			}
		case "const", "enum", "default", "examples": // values, not schemas
		default:
			m.Value = withoutKeywords(m.Value, keywords)
		}
		kept = append(kept, m)
	}
	return kept
}

// withoutKeywords applies [Object.WithoutKeywords] to a schema or to a list of schemas.
func withoutKeywords(value any, keywords []string) any {
	switch value := value.(type) {
	case Object:
		return value.WithoutKeywords(keywords...)
	case []any:
		list := slices.Clone(value)
		for i := range list {
			list[i] = withoutKeywords(list[i], keywords)
		}
		return list
	}
	return value
}

// merge returns one schema for the values that match both a and b. It returns a and false
// if members of the two conflict. An integer is also a number.
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

// Nullable returns a schema that matches null and the values that o matches.
func Nullable(o Object) Object {
	if len(o) == 0 {
		return o
	}
	kind, plain := o.Get("type").(string)
	for _, keyword := range []string{"$ref", "anyOf", "allOf", "enum", "not"} {
		plain = plain && o.Get(keyword) == nil
	}
	if !plain {
		return Object{{"anyOf", []any{o, Object{{"type", "null"}}}}}
	}
	return o.Replace("type", []string{kind, "null"})
}
