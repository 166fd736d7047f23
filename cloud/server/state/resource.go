package state

import (
	"errors"
	"fmt"
	"slices"
)

// resource is a resource of a deployment: its text, and the fields that this package needs.
type resource struct {
	text []byte // an object

	urn, typ, id, parent         string
	provider                     string // URN::ID of the provider
	deletedWith, viewOf          string
	dependencies, replaceWith    []string
	aliases                      []string
	propertyDependencies         map[string][]string
	delete, protect              bool
	refreshBeforeUpdate, tainted bool
	hasHooks                     bool
	extension, snippet           string
}

func parseResource(text []byte) (*resource, error) {
	fields, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	r := &resource{text: text}
	for _, field := range fields {
		if isNull(field.value) {
			continue
		}
		switch field.name {
		case "urn":
			r.urn, err = parseString(field.value)
		case "type":
			r.typ, err = parseString(field.value)
		case "id":
			r.id, err = parseString(field.value)
		case "parent":
			r.parent, err = parseString(field.value)
		case "provider":
			r.provider, err = parseString(field.value)
		case "deletedWith":
			r.deletedWith, err = parseString(field.value)
		case "viewOf":
			r.viewOf, err = parseString(field.value)
		case "dependencies":
			r.dependencies, err = parseStrings(field.value)
		case "replaceWith":
			r.replaceWith, err = parseStrings(field.value)
		case "aliases":
			r.aliases, err = parseStrings(field.value)
		case "propertyDependencies":
			r.propertyDependencies, err = parsePropertyDependencies(field.value)
		case "delete":
			r.delete, err = parseBool(field.value)
		case "protect":
			r.protect, err = parseBool(field.value)
		case "refreshBeforeUpdate":
			r.refreshBeforeUpdate, err = parseBool(field.value)
		case "taint":
			r.tainted, err = parseBool(field.value)
		case "resourceHooks":
			var hooks object
			hooks, err = parseObject(field.value)
			r.hasHooks = len(hooks) > 0
		case "extensionRef":
			r.extension, err = parseString(field.value)
		case "snippetID":
			r.snippet, err = parseString(field.value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field.name, err)
		}
	}
	if r.urn == "" {
		return nil, errors.New("a resource has no urn")
	}
	return r, nil
}

func parsePropertyDependencies(value []byte) (map[string][]string, error) {
	fields, err := parseObject(value)
	if err != nil {
		return nil, err
	}
	dependencies := make(map[string][]string, len(fields))
	for _, field := range fields {
		if isNull(field.value) {
			dependencies[field.name] = nil
			continue
		}
		if dependencies[field.name], err = parseStrings(field.value); err != nil {
			return nil, err
		}
	}
	return dependencies, nil
}

// change is a field with its new value. A nil value removes the field.
type change struct {
	name  string
	value []byte
}

// changed returns the resource with other fields.
func (r *resource) changed(changes []change) *resource {
	if len(changes) == 0 {
		return r
	}
	fields, err := parseObject(r.text)
	if err != nil {
		panic(err) // parseResource has accepted it
	}
	for _, c := range changes {
		fields = fields.with(c.name, c.value)
	}
	other, err := parseResource(fields.appendTo(nil))
	if err != nil {
		panic(err) // the changes have the types of the fields
	}
	return other
}

// operation is an operation on a resource whose result is not known.
type operation struct {
	text     []byte // an object
	kind     string // such as creating
	resource *resource
}

func parseOperation(text []byte) (operation, error) {
	fields, err := parseObject(text)
	if err != nil {
		return operation{}, err
	}
	o := operation{text: text}
	if o.kind, err = parseString(fields.get("type")); err != nil {
		return operation{}, fmt.Errorf("type: %w", err)
	}
	state := fields.get("resource")
	if state == nil {
		return operation{}, errors.New("an operation has no resource")
	}
	o.resource, err = parseResource(state)
	return o, err
}

// The features that follow from the fields of resources.
var ofResources = []string{
	"extensionParameterization", "hooks", "refreshBeforeUpdate", "replaceWith", featureSnippets, "taint", "views",
}

const (
	featureSnippets   = "snippets-prototype"
	featureByteString = "byteString"
)

// addFeatures adds the features of the resource.
func (r *resource) addFeatures(features map[string]bool) {
	for name, used := range map[string]bool{
		"extensionParameterization": r.extension != "",
		"hooks":                     r.hasHooks,
		"refreshBeforeUpdate":       r.refreshBeforeUpdate,
		"replaceWith":               len(r.replaceWith) > 0,
		featureSnippets:             r.snippet != "",
		"taint":                     r.tainted,
		"views":                     r.viewOf != "",
	} {
		if used {
			features[name] = true
		}
	}
}

// onlyIn returns the elements of a list that are in the set.
func onlyIn(list []string, set map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(element string) bool { return !set[element] })
}

// encodeOrRemove returns nil, which removes a field, for an empty list.
func encodeOrRemove(list []string) []byte {
	if len(list) == 0 {
		return nil
	}
	return encode(list)
}

// appendList appends a JSON list with the text of each element.
func appendList[E any](data []byte, elements []E, text func(E) []byte) []byte {
	data = append(data, '[')
	for i, element := range elements {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, text(element)...)
	}
	return append(data, ']')
}
