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
	outputs, err := parseOptionalObject(fields.get("outputs"))
	if err != nil {
		return shown
	}
	for _, field := range outputs {
		value, secret := mask(field.value)
		shown.Outputs = append(shown.Outputs, Property{field.name, value, secret})
	}
	return shown
}

// mask returns the value as text, and whether the value itself is a secret.
func mask(value []byte) (string, bool) {
	if isSecret(value) {
		return maskedSecret, true
	}
	if len(value) > maxShown {
		return fmt.Sprintf("[%d bytes]", len(value)), false
	}
	if value[0] == '"' {
		return unquote(value), false
	}
	var text bytes.Buffer
	if err := json.Compact(&text, appendMasked(nil, value)); err != nil {
		panic(err) // validate has accepted it
	}
	// Go writes <, > and & in JSON as \u003c and so on, for HTML. A backslash itself is written twice.
	readable := strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")
	return readable.Replace(text.String()), false
}

// appendMasked appends a value, in which secrets are replaced, to data.
func appendMasked(data, value []byte) []byte {
	switch {
	case isSecret(value):
		return append(data, `"`+maskedSecret+`"`...)
	case value[0] == '[':
		elements, err := parseList(value)
		if err != nil {
			panic(err)
		}
		return appendList(data, elements, func(element []byte) []byte { return appendMasked(nil, element) })
	case value[0] == '{':
		fields, err := parseObject(value)
		if err != nil {
			return append(data, `"`+maskedSecret+`"`...) // a secret may be in one of two fields of the same name
		}
		for i, field := range fields {
			fields[i].value = appendMasked(nil, field.value)
		}
		return fields.appendTo(data)
	}
	return append(data, value...)
}

// isSecret reports whether a value is an object with the signature of secrets.
func isSecret(value []byte) bool {
	if value[0] != '{' {
		return false
	}
	fields, err := parseObject(value)
	if err != nil {
		return true
	}
	text, err := parseString(fields.get(signature))
	return err != nil || text == secretSignature
}
