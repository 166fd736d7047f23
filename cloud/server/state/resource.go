package state

import (
	"errors"
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
	hooks                        object
	extension, snippet           string
}

func parseResource(text []byte) (*resource, error) {
	fields, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	r := &resource{text: text}
	err = fields.decode(map[string]func([]byte) error{
		"urn":                  into(&r.urn),
		"type":                 into(&r.typ),
		"id":                   into(&r.id),
		"parent":               into(&r.parent),
		"provider":             into(&r.provider),
		"deletedWith":          into(&r.deletedWith),
		"viewOf":               into(&r.viewOf),
		"dependencies":         into(&r.dependencies),
		"replaceWith":          into(&r.replaceWith),
		"aliases":              into(&r.aliases),
		"propertyDependencies": into(&r.propertyDependencies),
		"delete":               into(&r.delete),
		"protect":              into(&r.protect),
		"refreshBeforeUpdate":  into(&r.refreshBeforeUpdate),
		"taint":                into(&r.tainted),
		"resourceHooks":        parsed(&r.hooks, parseObject),
		"extensionRef":         into(&r.extension),
		"snippetID":            into(&r.snippet),
	})
	if err != nil {
		return nil, err
	}
	if r.urn == "" {
		return nil, errors.New("a resource has no urn")
	}
	return r, nil
}

// changed returns the resource with other fields.
func (r *resource) changed(changes ...field) *resource {
	if len(changes) == 0 {
		return r
	}
	fields, err := parseObject(r.text)
	if err != nil {
		panic(err) // parseResource has accepted it
	}
	other, err := parseResource(fields.with(changes...).appendTo(nil))
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

func parseOperation(text []byte) (*operation, error) {
	fields, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	o := &operation{text: text}
	err = fields.decode(map[string]func([]byte) error{
		"type": into(&o.kind), "resource": parsed(&o.resource, parseResource),
	})
	if err == nil && o.resource == nil {
		err = errors.New("an operation has no resource")
	}
	return o, err
}

const (
	featureSnippets   = "snippets-prototype"
	featureByteString = "byteString"
)

// features returns the features that follow from fields of resources, and whether this resource uses them.
func (r *resource) features() map[string]bool {
	return map[string]bool{
		"extensionParameterization": r.extension != "",
		"hooks":                     len(r.hooks) > 0,
		"refreshBeforeUpdate":       r.refreshBeforeUpdate,
		"replaceWith":               len(r.replaceWith) > 0,
		featureSnippets:             r.snippet != "",
		"taint":                     r.tainted,
		"views":                     r.viewOf != "",
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
