package podtemplate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"github.com/cmwa-project/cmwa/schema/jsonschema"
)

// Root is the name of the definition of a Pod template.
const Root = "#Pod"

// agentSchema is the JSON Schema of the rules about parts of the Pod that belong to the agent,
// as far as JSON Schema can express these rules: a template must not remove such a part or
// use a reserved name, and a container that the template adds needs an image. The schema
// accepts fields that the agent sets again after the merge.
const agentSchema = `{
	"$comment": "Parts of the Pod that belong to the agent.",
	"properties": {
		"apiVersion": {"const": "v1"},
		"kind": {"const": "Pod"},
		"$patch": false,
		"$retainKeys": false,
		"metadata": {
			"type": "object",
			"properties": {
				"labels": {"type": "object", "properties": {"$patch": false, "$retainKeys": false}},
				"annotations": {"type": "object", "properties": {"$patch": false, "$retainKeys": false}},
				"$patch": false,
				"$retainKeys": false
			}
		},
		"spec": {
			"type": "object",
			"properties": {
				"$patch": false,
				"$retainKeys": false,
				"containers": {
					"type": "array",
					"items": {
						"type": ["object", "null"],
						"if": {"properties": {"name": {"const": "pulumi-workflow"}}},
						"then": {
							"properties": {
								"$patch": false, "$retainKeys": false,
								"image": {"type": "string", "minLength": 1}
							}
						},
						"else": {
							"properties": {
								"name": {"type": ["string", "null"], "not": {"pattern": "^pulumi-workflow-"}}
							},
							"anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]
						}
					}
				},
				"initContainers": {
					"type": "array",
					"items": {
						"type": ["object", "null"],
						"if": {"properties": {"name": {"const": "pulumi-workflow-prepare"}}},
						"then": {"properties": {"$patch": false, "$retainKeys": false}},
						"else": {
							"properties": {
								"name": {"type": ["string", "null"], "not": {"pattern": "^pulumi-workflow(-|$)"}}
							},
							"anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]
						}
					}
				},
				"volumes": {
					"type": "array",
					"items": {
						"type": ["object", "null"],
						"properties": {
							"name": {"type": ["string", "null"], "not": {"pattern": "^pulumi-workflow(-|$)"}}
						}
					}
				}
			}
		}
	}
}`

// directives returns the schemas of merge directives, which are the keys that control how
// a mapping is merged. The keys of the result are patterns of these keys.
func directives() jsonschema.Object {
	texts := jsonschema.Object{}.With("type", "array").With("items", jsonschema.Object{}.With("type", "string"))
	return jsonschema.Object{}.
		With("^[$]patch$", jsonschema.Object{}.With("enum", []any{"replace", "delete"})).
		With("^[$]retainKeys$", texts).
		With("^[$](setElementOrder|deleteFromPrimitiveList)/", jsonschema.Object{}.With("type", "array"))
}

// Definition returns the JSON Schema of a definition, such as [Root]. The translator
// records references to other definitions.
func Definition(translator *jsonschema.Translator, name string) (jsonschema.Object, error) {
	types, err := readTypes()
	if err != nil {
		return nil, err
	}
	x, t := exporter{translator}, types[name]
	switch {
	case t == nil:
		return nil, errors.New("there is no such definition")
	case len(t.fields) == 0:
		return x.value(&t.leaf)
	default:
		o, err := x.mapping(name, t)
		if name == Root {
			o = o.With("allOf", []any{json.RawMessage(agentSchema)})
		}
		return o, err
	}
}

// exporter translates definitions of Pods to JSON Schema.
type exporter struct{ constraints *jsonschema.Translator }

// mapping translates a mapping of a Pod. A template is a patch, so it requires keys only in
// mappings that the agent's Pod does not have yet.
func (x exporter) mapping(name string, t *typeDef) (jsonschema.Object, error) {
	var properties jsonschema.Object
	var requiredKeys []string
	for _, key := range slices.Sorted(maps.Keys(t.fields)) {
		o, err := x.value(t.fields[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		properties = properties.With(key, jsonschema.Nullable(o))
		if t.fields[key].required {
			requiredKeys = append(requiredKeys, key)
		}
	}
	o := jsonschema.Object{}.
		With("type", "object").
		With("properties", properties).
		With("patternProperties", directives()).
		With("additionalProperties", false)
	inAgentPod := slices.Contains([]string{Root, "#ObjectMeta", "#PodSpec"}, name)
	if !inAgentPod && len(requiredKeys) > 0 {
		required := func(keys []string) jsonschema.Object { return jsonschema.Object{}.With("required", keys) }
		o = o.With("anyOf", []any{required([]string{"$patch"}), required(requiredKeys)})
	}
	return o, nil
}

// value translates the type of a value. A value must match the declarations of its key in
// both pod.cue and overlay.cue.
func (x exporter) value(f *valueType) (jsonschema.Object, error) {
	switch f.kind {
	case kindAny:
		return jsonschema.Object{}, nil
	case kindMapping:
		return x.constraints.Name(f.ref)
	case kindList:
		items, err := x.value(f.entry)
		return jsonschema.Object{}.With("type", "array").With("items", items), err
	case kindMap:
		return x.entries(f)
	}
	var exprs []ast.Expr
	for _, text := range f.sources {
		expr, err := parser.ParseExpr("", text)
		if err != nil {
			return nil, err
		}
		exprs = append(exprs, expr)
	}
	return x.constraints.Translate(exprs...)
}

// entries translates a mapping whose keys the template chooses.
func (x exporter) entries(f *valueType) (jsonschema.Object, error) {
	values, err := x.value(f.entry)
	if err != nil {
		return nil, err
	}
	o := jsonschema.Object{}.
		With("type", "object").
		With("patternProperties", directives().With("^[^$]|^$", jsonschema.Nullable(values))).
		With("additionalProperties", false)
	if f.keys == "" {
		return o, nil
	}
	key, err := x.constraints.Name(f.keys)
	if err != nil {
		return nil, err
	}
	names := []any{jsonschema.Object{}.With("pattern", "^[$]"), key}
	return o.With("propertyNames", jsonschema.Object{}.With("anyOf", names)), nil
}

// directivesCUE declares the keys of [directives] in CUE.
const directivesCUE = `"$patch"?: "replace" | "delete"
	"$retainKeys"?: [...string]
	[=~"^[$](setElementOrder|deleteFromPrimitiveList)/"]: [...]
`

// WriteCUE writes the definitions of Pods as CUE, without formatting.
func WriteCUE(b *bytes.Buffer) error {
	types, err := readTypes()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		t := types[name]
		if len(t.fields) == 0 {
			fmt.Fprintf(b, "%s: %s\n\n", name, expression(&t.leaf))
			continue
		}
		fmt.Fprintf(b, "%s: {\n\t%s", name, directivesCUE)
		for _, key := range slices.Sorted(maps.Keys(t.fields)) {
			fmt.Fprintf(b, "\t%s?: %s\n", key, orNull(t.fields[key]))
		}
		b.WriteString("}\n\n")
	}
	return nil
}

// orNull returns the CUE expression of a value that may also be null. In a template, null
// removes the key.
func orNull(f *valueType) string {
	if f.kind == kindAny {
		return "_"
	}
	return "null | " + expression(f)
}

// expression returns the CUE expression of a value.
func expression(f *valueType) string {
	switch f.kind {
	case kindAny:
		return "_"
	case kindMapping:
		return f.ref
	case kindList:
		return "[..." + expression(f.entry) + "]"
	case kindMap:
		keys := cmp.Or(f.keys, `=~"^[^$]|^$"`)
		return "{\n\t[" + keys + "]: " + orNull(f.entry) + "\n\t" + directivesCUE + "}"
	default:
		return "(" + strings.Join(f.sources, ") & (") + ")"
	}
}
