package position

import (
	"maps"
	"strconv"
)

// Origin is the position of a value in a file, or the variable that sets the value. The
// zero value is the origin of defaults.
type Origin struct {
	File     string
	Line     int // from 1
	Column   int // from 1, in characters
	Variable string
}

// String returns the variable's name, file:line, or default.
func (o Origin) String() string {
	switch {
	case o.Variable != "":
		return o.Variable
	case o.Line > 0:
		return o.File + ":" + strconv.Itoa(o.Line)
	default:
		return "default"
	}
}

// Value is a value of a configuration with its origin.
type Value struct {
	Key  Origin // of the key of the value, if it has one
	At   Origin
	Data any // nil, bool, int, int64, uint64, float64, string, []Value or Mapping
}

// Mapping is a YAML mapping with text keys.
type Mapping map[string]Value

// Get returns the value at a path of keys, and whether there is one. In a list, a step of
// the path is the index of an entry, from 0.
func (m Mapping) Get(path ...string) (Value, bool) {
	v, ok := m[path[0]]
	for _, step := range path[1:] {
		switch data := v.Data.(type) {
		case Mapping:
			v, ok = data[step]
		case []Value:
			i, err := strconv.Atoi(step)
			if ok = err == nil && 0 <= i && i < len(data); ok {
				v = data[i]
			}
		default:
			ok = false
		}
		if !ok {
			return Value{}, false
		}
	}
	return v, ok
}

// Set sets the value at a path. It replaces an existing value.
func (m Mapping) Set(v Value, path ...string) {
	if len(path) == 1 {
		m[path[0]] = v
		return
	}
	outer := m[path[0]]
	inner, ok := outer.Data.(Mapping)
	if !ok {
		inner = Mapping{}
		outer.Data = inner
		m[path[0]] = outer
	}
	inner.Set(v, path[1:]...)
}

// Remove deletes the value at a path. Entries of lists are not deleted.
func (m Mapping) Remove(path ...string) {
	last := len(path) - 1
	if last > 0 {
		v, _ := m.Get(path[:last]...)
		m, _ = v.Data.(Mapping)
	}
	delete(m, path[last])
}

// Without returns a copy of the mapping without the given keys.
func (m Mapping) Without(keys ...string) Mapping {
	copied := maps.Clone(m)
	for _, key := range keys {
		delete(copied, key)
	}
	return copied
}

// FromPlain converts decoded JSON or CUE to a mapping whose values have the origin of
// defaults.
func FromPlain(plain map[string]any) Mapping {
	m := make(Mapping, len(plain))
	for key, data := range plain {
		m[key] = Value{Data: unplain(data)}
	}
	return m
}

func unplain(data any) any {
	switch data := data.(type) {
	case map[string]any:
		return FromPlain(data)
	case []any:
		list := make([]Value, len(data))
		for i, entry := range data {
			list[i] = Value{Data: unplain(entry)}
		}
		return list
	case int64:
		return int(data)
	default:
		return data
	}
}

// Over returns a mapping with the keys of both mappings. If both have a key, the result has
// the value of m. If both values are mappings, Over merges these in the same way.
func (m Mapping) Over(other Mapping) Mapping {
	merged := make(Mapping, len(m)+len(other))
	maps.Copy(merged, other)
	for key, v := range m {
		upper, isMapping := v.Data.(Mapping)
		lower, wasMapping := merged[key].Data.(Mapping)
		if isMapping && wasMapping {
			v.Data = upper.Over(lower)
		}
		merged[key] = v
	}
	return merged
}

// Origins adds the origin of each value to a map. The key in the map is the path of the value,
// which begins with at. Origins adds the origin of a list, but not those of its entries.
func (m Mapping) Origins(at string, into map[string]Origin) {
	for key, v := range m {
		path := Join(at, key)
		if inner, ok := v.Data.(Mapping); ok {
			inner.Origins(path, into)
			continue
		}
		into[path] = v.At
	}
}

// Plain returns the data of the value without origins.
func (v Value) Plain() any {
	switch data := v.Data.(type) {
	case Mapping:
		return data.Plain()
	case []Value:
		list := make([]any, len(data))
		for i, entry := range data {
			list[i] = entry.Plain()
		}
		return list
	default:
		return data
	}
}

// Plain returns the data of the mapping without origins.
func (m Mapping) Plain() map[string]any {
	plain := make(map[string]any, len(m))
	for key, v := range m {
		plain[key] = v.Plain()
	}
	return plain
}
