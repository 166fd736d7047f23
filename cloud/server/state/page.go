package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Resource is a resource as a page shows it.
type Resource struct {
	URN, Type, Name, ID string
	Protected           bool
	Deleting            bool // replaced, and to be deleted by the next update
	Outputs             []Property
}

// Property is an output. Its value is a string, or other JSON without white space. Secrets, also within a
// value, are replaced by [secret], and a value of more than 10,000 bytes by its length.
type Property struct {
	Name, Value string
	Secret      bool // the whole value
}

const maskedSecret = "[secret]"

const maxShown = 10_000 // bytes of a value; of a longer one, only the length is shown

// The field and its values by which Pulumi marks special objects.
const (
	signature       = "4dabf18193072939515e22adb298388d"
	secretSignature = "1b47061264138c4ac30d75fd1eb44270"
)

// Resources returns the resources in the order of the state.
func (d *Deployment) Resources() []Resource {
	resources := make([]Resource, len(d.resources))
	for i, r := range d.resources {
		resources[i] = r.shown()
	}
	return resources
}

// Outputs returns the outputs of the stack: those of the root stack. It returns none if there is no root stack.
func (d *Deployment) Outputs() []Property {
	for _, r := range d.resources {
		if r.typ == rootStackType && !r.delete {
			return r.shown().Outputs
		}
	}
	return nil
}

func (r *resource) shown() Resource {
	shown := Resource{URN: r.urn, Type: r.typ, ID: r.id, Protected: r.protect, Deleting: r.delete}
	if parts := strings.SplitN(r.urn, "::", 4); len(parts) == 4 {
		shown.Name = parts[3]
	}
	fields, err := parseObject(r.text)
	if err != nil {
		panic(err) // parseResource has accepted it
	}
	outputs, err := parseObject(fields.get("outputs"))
	if err != nil {
		return shown
	}
	for _, output := range outputs {
		value, secret := mask(output.value)
		shown.Outputs = append(shown.Outputs, Property{output.name, value, secret})
	}
	return shown
}

// mask returns the value as text, and whether the value itself is a secret.
func mask(text []byte) (shown string, secret bool) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(text, &fields)
	if err == nil && string(fields[signature]) == `"`+secretSignature+`"` {
		return maskedSecret, true
	}
	if len(text) > maxShown {
		return fmt.Sprintf("[%d bytes]", len(text)), false
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // 1.50 stays 1.50
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic(err) // parseText has accepted it
	}
	value = masked(value)
	if text, ok := value.(string); ok {
		return text, false
	}
	return string(encode(value)), false
}

// masked returns a value in which secrets are replaced.
func masked(value any) any {
	switch value := value.(type) {
	case []any:
		for i := range value {
			value[i] = masked(value[i])
		}
	case map[string]any:
		if value[signature] == secretSignature {
			return maskedSecret
		}
		for name := range value {
			value[name] = masked(value[name])
		}
	}
	return value
}
