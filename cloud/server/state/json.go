package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxDepth is the number of objects and lists that may contain each other.
const maxDepth = 100

// validate reports why data is not one JSON value, or is nested too deeply. The functions below
// require data that validate has accepted.
func validate(data []byte) error {
	if !utf8.Valid(data) || !json.Valid(data) {
		return errors.New("the text is not valid JSON in UTF-8: send it again, complete")
	}
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i) - 1
		case '{', '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("the text has more than %d levels of objects and lists", maxDepth)
			}
		case '}', ']':
			depth--
		}
	}
	return nil
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

// end returns the index behind the value that starts at data[start].
func end(data []byte, start int) int {
	switch data[start] {
	case '"':
		return endOfString(data, start)
	case '{', '[':
		depth := 0
		for i := start; ; i++ {
			switch data[i] {
			case '"':
				i = endOfString(data, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}
	for i := start; i < len(data); i++ {
		switch data[i] {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return i
		}
	}
	return len(data)
}

// token returns the index of the next byte that is no white space, comma or colon.
func token(data []byte, i int) int {
	for i < len(data) {
		switch data[i] {
		case ' ', '\t', '\r', '\n', ',', ':':
			i++
		default:
			return i
		}
	}
	return i
}

// member is a field of an object. Its slices are parts of the text of the object.
type member struct {
	name  string
	raw   []byte // the name with its quotes
	value []byte
}

// object is a JSON object with its fields in the order of the text.
type object []member

// parseObject fails if the value is no object, or has two fields of the same name: each client
// would use another one of the two.
func parseObject(value []byte) (object, error) {
	i := token(value, 0)
	if value[i] != '{' {
		return nil, errors.New("expected an object")
	}
	var fields object
	names := map[string]bool{}
	for i = token(value, i+1); value[i] != '}'; i = token(value, i) {
		var field member
		stop := endOfString(value, i)
		field.raw = value[i:stop]
		field.name = unquote(field.raw)
		if names[field.name] {
			return nil, errors.New("an object has two fields of the same name")
		}
		names[field.name] = true
		i = token(value, stop)
		stop = end(value, i)
		field.value = value[i:stop]
		fields = append(fields, field)
		i = stop
	}
	return fields, nil
}

// parseOptionalObject returns an empty object for a nil value.
func parseOptionalObject(value []byte) (object, error) {
	if value == nil {
		return nil, nil
	}
	return parseObject(value)
}

// get returns nil if there is no field of this name, or if it is null.
func (o object) get(name string) []byte {
	for _, field := range o {
		if field.name == name && !isNull(field.value) {
			return field.value
		}
	}
	return nil
}

// with returns a copy of the object in which the field has the value, or without the field if the
// value is nil. A new field is the last one.
func (o object) with(name string, value []byte) object {
	changed := make(object, 0, len(o)+1)
	found := false
	for _, field := range o {
		if field.name == name {
			if value == nil {
				continue
			}
			field.value, found = value, true
		}
		changed = append(changed, field)
	}
	if value != nil && !found {
		changed = append(changed, member{name, encode(name), value})
	}
	return changed
}

// appendTo appends the text of the object to data.
func (o object) appendTo(data []byte) []byte {
	data = append(data, '{')
	for i, field := range o {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, field.raw...)
		data = append(data, ':')
		data = append(data, field.value...)
	}
	return append(data, '}')
}

// parseList returns the elements of a list. A nil value is an empty list.
func parseList(value []byte) ([][]byte, error) {
	if value == nil {
		return nil, nil
	}
	i := token(value, 0)
	if value[i] != '[' {
		return nil, errors.New("expected a list")
	}
	var elements [][]byte
	for i = token(value, i+1); value[i] != ']'; i = token(value, i) {
		stop := end(value, i)
		elements = append(elements, value[i:stop])
		i = stop
	}
	return elements, nil
}

// parseString returns the empty string for a nil value.
func parseString(value []byte) (string, error) {
	if value == nil || isNull(value) {
		return "", nil
	}
	if value[0] != '"' {
		return "", errors.New("expected a string")
	}
	return unquote(value), nil
}

func parseStrings(value []byte) ([]string, error) {
	elements, err := parseList(value)
	if err != nil || elements == nil {
		return nil, err
	}
	texts := make([]string, len(elements))
	for i, element := range elements {
		if texts[i], err = parseString(element); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// parseBool returns false for a nil value.
func parseBool(value []byte) (bool, error) {
	if value == nil {
		return false, nil
	}
	if value[0] != 't' && value[0] != 'f' {
		return false, errors.New("expected true or false")
	}
	return value[0] == 't', nil
}

// parseInt returns 0 for a nil value.
func parseInt(value []byte) (int64, error) {
	if value == nil {
		return 0, nil
	}
	number, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, errors.New("expected a whole number of 64 bits")
	}
	return number, nil
}

func isNull(value []byte) bool { return value[0] == 'n' }

// unquote returns the text of a JSON string.
func unquote(value []byte) string {
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		panic(err) // validate has accepted it
	}
	return text
}

// encode returns the JSON text of a value that consists of strings, lists and maps of strings.
func encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // such a value can always be encoded
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
