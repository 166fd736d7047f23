package schema

import (
	"maps"
	"slices"
	"strconv"
)

// Origin is where a value comes from. The zero value is the defaults.
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

// value is a value together with the place it comes from.
type value struct {
	key  Origin // of the key that names it, if there is one
	at   Origin
	data any // nil, bool, int, int64, uint64, float64, string, []value or table
}

// table is a mapping.
type table map[string]value

// get returns the value at a path of keys. A number is also the index of an
// entry of a list, from 0.
func (t table) get(path ...string) (value, bool) {
	v, ok := t[path[0]]
	for _, step := range path[1:] {
		switch data := v.data.(type) {
		case table:
			v, ok = data[step]
		case []value:
			i, err := strconv.Atoi(step)
			if ok = err == nil && 0 <= i && i < len(data); ok {
				v = data[i]
			}
		default:
			ok = false
		}
		if !ok {
			return value{}, false
		}
	}
	return v, ok
}

// set puts a value at a path, over whatever is in its way.
func (t table) set(v value, path ...string) {
	if len(path) == 1 {
		t[path[0]] = v
		return
	}
	outer := t[path[0]]
	inner, ok := outer.data.(table)
	if !ok {
		inner = table{}
		outer.data = inner
		t[path[0]] = outer
	}
	inner.set(v, path[1:]...)
}

// remove takes away the value at a path, if it is in a mapping.
func (t table) remove(path ...string) {
	last := len(path) - 1
	if last > 0 {
		v, _ := t.get(path[:last]...)
		t, _ = v.data.(table)
	}
	delete(t, path[last])
}

// without returns the table less some keys.
func (t table) without(keys ...string) table {
	less := maps.Clone(t)
	for _, key := range keys {
		delete(less, key)
	}
	return less
}

// written returns plain data as a table without places, which are those of the
// defaults.
func written(plain map[string]any) table {
	t := make(table, len(plain))
	for key, data := range plain {
		t[key] = value{data: unplain(data)}
	}
	return t
}

func unplain(data any) any {
	switch data := data.(type) {
	case map[string]any:
		return written(data)
	case []any:
		list := make([]value, len(data))
		for i, entry := range data {
			list[i] = value{data: unplain(entry)}
		}
		return list
	case int64:
		return int(data)
	default:
		return data
	}
}

// over lays the table over another: what both set, this one decides, but
// mappings are laid over each other key by key.
func (t table) over(other table) table {
	merged := make(table, len(t)+len(other))
	for key, v := range other {
		merged[key] = v
	}
	for key, v := range t {
		upper, isTable := v.data.(table)
		lower, wasTable := merged[key].data.(table)
		if isTable && wasTable {
			v.data = upper.over(lower)
		}
		merged[key] = v
	}
	return merged
}

// origins returns where each value comes from, by path, entries of lists aside.
func (t table) origins(at string, into map[string]Origin) {
	for key, v := range t {
		path := join(at, key)
		if inner, ok := v.data.(table); ok {
			inner.origins(path, into)
			continue
		}
		into[path] = v.at
	}
}

// plain returns the value without its places.
func (v value) plain() any {
	switch data := v.data.(type) {
	case table:
		return data.plain()
	case []value:
		list := make([]any, len(data))
		for i, entry := range data {
			list[i] = entry.plain()
		}
		return list
	default:
		return data
	}
}

func (t table) plain() map[string]any {
	plain := make(map[string]any, len(t))
	for key, v := range t {
		plain[key] = v.plain()
	}
	return plain
}

// sortedKeys returns the keys in order, so that the order of maps never shows.
func (t table) sortedKeys() []string { return slices.Sorted(maps.Keys(t)) }
