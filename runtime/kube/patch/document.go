package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Document is a Pod as data of JSON: mappings, lists, text, whole numbers and true
// or false. Text that may be secret is a [secret.String]: it prints as a mark, and
// two of them are equal if they hold the same.
type Document map[string]any

// NewDocument returns a Pod as data, without what only the cluster reports. Commands
// are shown of the containers with the public names only.
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
	return maskedFields(data, public), nil
}

// masked returns data with [secret.String] in place of what may be secret: values
// of environment variables, commands of containers that are not public, and text
// that looks like a token. These are the rules of cmwa config. Numbers become int64,
// or float64 if they are not whole.
func masked(value any, public []string) any {
	switch value := value.(type) {
	case map[string]any:
		return maskedFields(value, public)
	case []any:
		for i := range value {
			value[i] = masked(value[i], public)
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
		number, _ := value.Float64() // JSON was decoded, so it is one
		return number
	default:
		return value
	}
}

// maskedFields is masked for a mapping.
func maskedFields(fields map[string]any, public []string) map[string]any {
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
			fields[key] = masked(value, public)
		}
	}
	return fields
}
