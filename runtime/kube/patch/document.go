package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Document is a Pod as JSON values: mappings, lists, strings, numbers and booleans. A
// string that may be secret is a [secret.String]: it prints as a mark instead of its value,
// and two of them are equal if their values are equal.
type Document map[string]any

// NewDocument returns a Pod as a document, without its status. It masks the commands of all
// containers except those with a public name.
func NewDocument(pod *corev1.Pod, public ...string) (Document, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("write the Pod as JSON: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var data map[string]any
	if err := decoder.Decode(&data); err != nil {
		return nil, fmt.Errorf("read the Pod as JSON: %w", err)
	}
	delete(data, "status")
	return maskFields(data, public), nil
}

// mask returns a value with each string that may be secret replaced by a [secret.String]:
// values of environment variables, commands of containers that are not public, and strings
// that look like tokens. These are the rules of cmwa config. Numbers become int64, or
// float64 if they have a fraction.
func mask(value any, public []string) any {
	switch value := value.(type) {
	case map[string]any:
		return maskFields(value, public)
	case []any:
		for i := range value {
			value[i] = mask(value[i], public)
		}
		return value
	case string:
		if secret.ContainsToken(value) {
			return secret.New(value)
		}
		return value
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		number, _ := value.Float64() // never fails: the JSON was valid
		return number
	default:
		return value
	}
}

// maskFields does what mask does, for a mapping.
func maskFields(fields map[string]any, public []string) map[string]any {
	name, named := fields["name"].(string)
	own := slices.Contains(public, name)
	for key, value := range fields {
		text, isText := value.(string)
		list, isList := value.([]any)
		switch {
		case isText && named && key == "value":
			fields[key] = secret.New(text)
		case isList && !own && (key == "command" || key == "args"):
			for i := range list {
				text, _ := list[i].(string)
				list[i] = secret.New(text)
			}
		default:
			fields[key] = mask(value, public)
		}
	}
	return fields
}
