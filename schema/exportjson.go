package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/cmwa-project/cmwa/schema/jsonschema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// SchemaID names the JSON Schema of a configuration file. It is only a name: no program
// needs to fetch this URL.
const SchemaID = "https://github.com/cmwa-project/cmwa/schema/pulumi-workflow-agent.json"

// commentForValidators is a comment in the JSON Schema for editors.
const commentForValidators = "patternErrorMessage and deprecationMessage are keywords of editors. " +
	"For a validator that rejects unknown keywords, use cmwa schema --format json-standard."

// JSONSchema returns the schema of a configuration file as JSON Schema, draft 2020-12,
// for editors and for checks in other languages. It rejects what [Load] rejects, as far
// as this depends on one value or one mapping: it has no rules of YAML itself, no rules
// across keys, no bounds of durations with a unit, and no rules about files that keys name.
//
// Editors define the keywords patternErrorMessage and deprecationMessage.
// [StandardJSONSchema] does not use them.
func JSONSchema() ([]byte, error) {
	root, err := jsonSchema()
	if err != nil {
		return nil, err
	}
	return indented(root.With("$comment", commentForValidators))
}

// StandardJSONSchema returns the schema of [JSONSchema] without the keywords of editors,
// for validators that reject keywords that the standard does not define.
func StandardJSONSchema() ([]byte, error) {
	root, err := jsonSchema()
	if err != nil {
		return nil, err
	}
	return indented(root.WithoutKeywords("patternErrorMessage", "deprecationMessage"))
}

func jsonSchema() (jsonschema.Object, error) {
	x, err := newExport()
	if err != nil {
		return nil, err
	}
	config, err := x.mapping("#Config", "")
	if err != nil {
		return nil, err
	}
	definitions, err := x.constraints.Definitions(x.definition)
	if err != nil {
		return nil, err
	}

	root := jsonschema.Object{}.
		With("$schema", "https://json-schema.org/draft/2020-12/schema").
		With("$id", SchemaID).
		With("title", FileName).
		With("description", "Configuration of a workflow agent. "+
			"The file may be empty, because variables can set every key.")
	return append(root, jsonschema.Nullable(config)...).With("$defs", definitions), nil
}

func indented(root jsonschema.Object) ([]byte, error) {
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return append(text, '\n'), nil
}

// mapping translates a definition whose keys are fields of the schema. prefix is the
// beginning of the keys of these fields: empty or [poolsPrefix].
func (x *export) mapping(name, prefix string) (jsonschema.Object, error) {
	definition := x.named[name]
	if definition == nil {
		return nil, fmt.Errorf("there is no definition %s", name)
	}
	return x.structure(definition.Value, prefix)
}

func (x *export) structure(expr ast.Expr, prefix string) (jsonschema.Object, error) {
	var kind any = "object"
	if choice, ok := expr.(*ast.BinaryExpr); ok && choice.Op == token.OR {
		kind, expr = []string{"object", "null"}, choice.Y
	}
	body, ok := expr.(*ast.StructLit)
	if !ok {
		return nil, fmt.Errorf("%s is not a mapping of keys", prefix)
	}
	properties, required, err := x.properties(body, prefix)
	if err != nil {
		return nil, err
	}
	o := jsonschema.Object{}.With("type", kind)
	if len(required) > 0 {
		o = o.With("required", required)
	}
	return o.With("properties", properties).With("additionalProperties", false), nil
}

func (x *export) properties(body *ast.StructLit, prefix string) (
	properties jsonschema.Object, required []string, err error,
) {
	for _, element := range body.Elts {
		switch e := element.(type) {
		case *ast.EmbedDecl:
			name, ok := e.Expr.(*ast.Ident)
			if !ok || x.named[name.Name] == nil {
				return nil, nil, fmt.Errorf("%s embeds something other than a definition", prefix)
			}
			inner, ok := x.named[name.Name].Value.(*ast.StructLit)
			if !ok {
				return nil, nil, fmt.Errorf("%s embeds %s, which is not a mapping", prefix, name.Name)
			}
			more, needed, err := x.properties(inner, prefix)
			if err != nil {
				return nil, nil, err
			}
			properties, required = append(properties, more...), append(required, needed...)
		case *ast.Field:
			key := labelOf(e)
			f, ok := x.fields[prefix+key]
			if !ok {
				f, ok = x.fields[strings.TrimPrefix(prefix+key, poolsPrefix)] // a key of pools and of the top level
			}
			if !ok {
				return nil, nil, fmt.Errorf("%s%s is not a field", prefix, key)
			}
			value, err := x.key(f, e.Value, prefix+key)
			if err != nil {
				return nil, nil, err
			}
			properties = properties.With(key, value)
			if f.Required {
				required = append(required, key)
			}
		case *ast.CommentGroup:
		default:
			return nil, nil, fmt.Errorf("%s has a declaration that cannot be translated", prefix)
		}
	}
	return properties, required, nil
}

// poolsPrefix is the prefix of the keys that only a pool has.
const poolsPrefix = "pools."

// key translates one key with its documentation. A key in a pool has no variable, and its
// default is the value of the top level.
func (x *export) key(f Field, expr ast.Expr, path string) (jsonschema.Object, error) {
	inPool := strings.HasPrefix(path, poolsPrefix)
	o := jsonschema.Object{}.With("title", path).With("description", x.description(f, inPool))
	if f.Old != "" {
		current, definition := x.fields[f.Old], x.declaration(f.Old)
		if definition == nil {
			return nil, fmt.Errorf("%s is the old name of an unknown key", f.Key)
		}
		value, err := x.value(current, definition.Value, f.Old)
		if err != nil {
			return nil, err
		}
		o = o.With("deprecated", true).With("deprecationMessage", "old name: write "+f.Old)
		return append(o, value...), nil
	}
	if f.Unused != "" || f.Ignored {
		message := strings.TrimSuffix("has no effect: "+f.Unused, ": ")
		return o.With("deprecated", true).With("deprecationMessage", message), nil
	}

	value, err := x.value(f, expr, path)
	if err != nil {
		return nil, err
	}
	o = append(o, value...)
	if f.Default != "" && !inPool {
		o = o.With("default", json.RawMessage(f.Default))
	}
	return o, nil
}

// declaration returns the declaration of a key of the top level, or nil.
func (x *export) declaration(key string) *ast.Field {
	for _, name := range []string{"#Settings", "#Config"} {
		body, ok := x.named[name].Value.(*ast.StructLit)
		if !ok {
			continue
		}
		for _, element := range body.Elts {
			if field, ok := element.(*ast.Field); ok && labelOf(field) == key {
				return field
			}
		}
	}
	return nil
}

// description returns the documentation of a key with its bounds, its variable and when a
// change takes effect.
func (x *export) description(f Field, inPool bool) string {
	text := f.Doc
	if f.Old != "" {
		text = "Old name of " + f.Old + ". " + text
	}
	if f.Unused != "" {
		text += " It has no effect: " + f.Unused + "."
	}
	if f.Kind == KindDuration {
		text += fmt.Sprintf(" From %s to %s.", formatDuration(f.Shortest), formatDuration(f.Longest))
	}
	if f.Reload != "" {
		text += fmt.Sprintf(" A change takes effect %s (%s).", f.Reload.Meaning(), f.Reload)
	}
	if f.Variable != "" && !inPool {
		text += " Variable: " + f.Variable + "."
	}
	return text
}

func (x *export) value(f Field, expr ast.Expr, path string) (jsonschema.Object, error) {
	switch f.Kind {
	case KindMapping:
		return x.structure(expr, path+".")
	case KindMappings:
		pool, err := x.constraints.Name("#Pool")
		return jsonschema.Object{}.With("type", "array").With("minItems", 1).With("items", pool), err
	}
	o, err := x.constraints.Translate(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if items, ok := o.Get("items").(jsonschema.Object); ok {
		return o.Replace("items", items.WithPatternMessage("must be "+f.entrySentence())), nil
	}
	return o.WithPatternMessage("must be " + f.sentence()), nil
}

// definition translates one definition that a constraint refers to.
func (x *export) definition(name string) (jsonschema.Object, error) {
	switch name {
	case "#Pool":
		return x.mapping(name, poolsPrefix)
	case "#TemplateRule":
		return x.templateRule()
	}
	if definition := x.named[name]; definition != nil {
		o, err := x.constraints.Translate(definition.Value)
		like := map[string]string{"#Duration": "polling_interval", "#CPUs": "docker.cpus"}[name]
		if f, ok := x.fields[like]; ok {
			o = o.WithPatternMessage("must be " + f.sentence())
		}
		return o, err
	}
	o, err := podtemplate.Definition(&x.constraints, name)
	if name == "#PodSpec" {
		o = offerOnlyNever(o)
	}
	return o, err
}

// templateRule translates one rule of pod_template_rules.
func (x *export) templateRule() (jsonschema.Object, error) {
	patterns := jsonschema.Object{}
	for _, key := range matchKeys {
		patterns = patterns.With(key, jsonschema.Object{}.With("type", "string"))
	}
	patch, err := x.constraints.Name(podtemplate.Root)
	match := jsonschema.Object{}.With("type", []string{"object", "null"}).With("properties", patterns).
		With("additionalProperties", false)
	return jsonschema.Object{}.With("type", "object").With("required", []string{"patch"}).
		With("properties", jsonschema.Object{}.With("match", match).With("patch", patch)).
		With("additionalProperties", false), err
}

// offerOnlyNever changes restartPolicy of a Pod so that editors offer only Never. [Load]
// accepts the other values with a warning, because the agent replaces them.
func offerOnlyNever(spec jsonschema.Object) jsonschema.Object {
	const key = "restartPolicy"
	properties, ok := spec.Get("properties").(jsonschema.Object)
	if !ok || properties.Get(key) == nil {
		return spec
	}
	const message = "has no effect: it is always Never, because a job runs once"
	never := jsonschema.Object{}.With("type", "string").With("enum", []any{"Never"})
	others := jsonschema.Object{}.With("type", "string").With("pattern", "^(Always|OnFailure)$").
		With("deprecated", true).With("deprecationMessage", message).
		With("patternErrorMessage", "must be Never")
	null := jsonschema.Object{}.With("type", "null")
	policy := jsonschema.Object{}.With("anyOf", []any{never, others, null})
	return spec.Replace("properties", properties.Replace(key, policy))
}
