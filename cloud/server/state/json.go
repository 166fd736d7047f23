package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDepth is the number of objects and lists that may contain each other.
const maxDepth = 100

// parseText returns the object that data consists of. The functions below require data that parseText has accepted.
func parseText(data []byte) (object, error) {
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, errors.New("the text is not valid JSON in UTF-8: send it again, complete")
	}
	data = bytes.TrimSpace(data)
	if _, levels := end(data, 0); levels > maxDepth {
		return nil, fmt.Errorf("the text has more than %d levels of objects and lists", maxDepth)
	}
	return parseObject(data)
}

// end returns the index behind the value that starts at data[start], and how many objects and lists contain each
// other in the value.
func end(data []byte, start int) (stop, levels int) {
	switch data[start] {
	case '"':
		return endOfString(data, start), 0
	case '{', '[':
		depth := 0
		for i := start; ; i++ {
			switch data[i] {
			case '"':
				i = endOfString(data, i) - 1
			case '{', '[':
				depth++
				levels = max(levels, depth)
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, levels
				}
			}
		}
	}
	if length := bytes.IndexAny(data[start:], ",]} \t\r\n"); length >= 0 {
		return start + length, 0
	}
	return len(data), 0
}

// endOfString returns the index behind the string that starts at data[start].
func endOfString(data []byte, start int) int {
	for i := start + 1; ; i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// elements returns the elements of a list, or the names and values of an object in turn.
func elements(value []byte) (all [][]byte) {
	for i := token(value, 1); i < len(value)-1; i = token(value, i) {
		stop, _ := end(value, i)
		all = append(all, value[i:stop])
		i = stop
	}
	return all
}

// token returns the index of the next byte that is no white space, comma or colon.
func token(data []byte, i int) int {
	return len(data) - len(bytes.TrimLeft(data[i:], " \t\r\n,:"))
}

// field is a field of an object. Its value is a part of the text of the object.
type field struct {
	name  string
	value []byte // nil, in a change of an object, removes the field
}

// object is a JSON object with its fields in the order of the text.
type object []field

// parseObject returns an empty object for a nil value. It fails if the value is no object, or has two fields of the
// same name: each client would use another one of the two.
func parseObject(value []byte) (object, error) {
	if value == nil {
		return nil, nil
	}
	if value[0] != '{' {
		return nil, errors.New("expected an object")
	}
	all := elements(value)
	fields := make(object, 0, len(all)/2)
	names := make(map[string]bool, len(all)/2)
	for pair := range slices.Chunk(all, 2) {
		name := unquote(pair[0])
		if names[name] {
			return nil, errors.New("an object has two fields of the same name")
		}
		names[name] = true
		fields = append(fields, field{name, pair[1]})
	}
	return fields, nil
}

// get returns nil if there is no field of this name, or if it is null.
func (o object) get(name string) []byte {
	for _, f := range o {
		if f.name == name && !isNull(f.value) {
			return f.value
		}
	}
	return nil
}

// decode calls, for each field, the function for its name with its value. It skips null, and names without a function.
func (o object) decode(functions map[string]func([]byte) error) error {
	for _, f := range o {
		if function := functions[f.name]; function != nil && !isNull(f.value) {
			if err := function(f.value); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

// with returns a copy of the object with other fields. It removes a field whose value is nil. New fields are the
// last ones.
func (o object) with(changes ...field) object {
	changed := slices.Clone(o)
	for _, c := range changes {
		same := func(f field) bool { return f.name == c.name }
		i := slices.IndexFunc(changed, same)
		switch {
		case c.value == nil:
			changed = slices.DeleteFunc(changed, same)
		case i < 0:
			changed = append(changed, c)
		default:
			changed[i] = c
		}
	}
	return changed
}

// appendTo appends the text of the object to data.
func (o object) appendTo(data []byte) []byte {
	data = append(data, '{')
	for i, f := range o {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(append(data, encode(f.name)...), ':')
		data = append(data, f.value...)
	}
	return append(data, '}')
}

// parseList returns the elements of a list. A nil value is an empty list.
func parseList(value []byte) ([][]byte, error) {
	if value == nil {
		return nil, nil
	}
	if value[0] != '[' {
		return nil, errors.New("expected a list")
	}
	return elements(value), nil
}

// listOf returns a function that parses a list, with parse for each element.
func listOf[T any](parse func([]byte) (T, error)) func([]byte) ([]T, error) {
	return func(value []byte) ([]T, error) {
		texts, err := parseList(value)
		if err != nil {
			return nil, err
		}
		all := make([]T, len(texts))
		for i, text := range texts {
			if all[i], err = parse(text); err != nil {
				return nil, fmt.Errorf("element %d: %w", i, err)
			}
		}
		return all, nil
	}
}

// into returns a function that decodes a value into a variable. Its error contains no part of the value.
func into(variable any) func([]byte) error {
	return func(value []byte) error {
		if text, ok := variable.(*string); ok && value[0] == '"' {
			*text = unquote(value)
			return nil
		}
		if json.Unmarshal(value, variable) == nil {
			return nil
		}
		return fmt.Errorf("expected %s", strings.TrimPrefix(reflect.TypeOf(variable).Elem().String(), "*"))
	}
}

// parsed returns a function that parses a value into a variable.
func parsed[T any](variable *T, parse func([]byte) (T, error)) func([]byte) error {
	return func(value []byte) (err error) {
		*variable, err = parse(value)
		return err
	}
}

// unquote returns the text of a JSON string. Most strings have no escapes. Decoding all of them with encoding/json
// would take most of the time for a large state.
func unquote(value []byte) (text string) {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	if err := json.Unmarshal(value, &text); err != nil {
		panic(err) // parseText has accepted it
	}
	return text
}

func isNull(value []byte) bool { return value[0] == 'n' }

// encode returns the JSON text of a value that consists of strings, numbers, lists and maps.
func encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // such a value can always be encoded
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
