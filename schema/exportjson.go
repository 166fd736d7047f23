package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/cmwa-project/cmwa/schema/jsonschema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// SchemaID names the JSON Schema of a configuration file. It is a name: nothing
// needs to be fetched from there.
const SchemaID = "https://github.com/cmwa-project/cmwa/schema/pulumi-workflow-agent.json"

// JSONSchema returns the schema of a configuration file as JSON Schema, draft
// 2020-12, for editors and for checks in other languages. It refuses what [Load]
// refuses, as far as one value or one mapping can be judged alone: YAML's own
// rules, rules across keys, files that the configuration names and the bounds of
// durations are not in it.
func JSONSchema() ([]byte, error) {
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
		With("description", "Configuration of a workflow agent. An empty file is one, too: everything can come from variables.")
	root = append(root, jsonschema.Nullable(config)...).With("$defs", definitions)
	text, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// mapping translates a definition whose keys are described by fields. Those of a
// pool alone stand under the key that holds the pools.
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
		return nil, fmt.Errorf("%s is no mapping of keys", prefix)
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
				return nil, nil, fmt.Errorf("%s embeds what is no definition", prefix)
			}
			inner, ok := x.named[name.Name].Value.(*ast.StructLit)
			if !ok {
				return nil, nil, fmt.Errorf("%s embeds %s, which is no mapping", prefix, name.Name)
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
				f, ok = x.fields[strings.TrimPrefix(prefix+key, poolsPrefix)] // a pool has it in common with the top level
			}
			if !ok {
				return nil, nil, fmt.Errorf("%s%s is in no list of fields", prefix, key)
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
			return nil, nil, fmt.Errorf("%s holds what has no translation", prefix)
		}
	}
	return properties, required, nil
}

// poolsPrefix is that of the keys that only a pool has.
const poolsPrefix = "pools."

// key translates one key with all that is known about it. In a pool it has no
// default but what the top level says, and no variable.
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
		return append(o.With("deprecated", true), value...), nil
	}
	if f.Unused != "" || f.Ignored {
		return o.With("deprecated", true), nil
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

// declaration finds a key of the top level.
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

// description is the documentation of a key with what an editor should show
// beside it.
func (x *export) description(f Field, inPool bool) string {
	text := f.Doc
	if f.Old != "" {
		text = "Old name of " + f.Old + ". " + text
	}
	if f.Unused != "" {
		text += " It has no effect: " + f.Unused + "."
	}
	if f.Kind == KindDuration {
		text += fmt.Sprintf(" From %s to %s.", short(f.Shortest), short(f.Longest))
	}
	if f.Variable != "" && !inPool {
		text += " Variable: " + f.Variable + "."
	}
	return text
}

// value translates the constraint of a key.
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
	return o, nil
}

// definition translates one definition that a constraint refers to.
func (x *export) definition(name string) (jsonschema.Object, error) {
	if name == "#Pool" {
		return x.mapping(name, poolsPrefix)
	}
	if definition := x.named[name]; definition != nil {
		return x.constraints.Translate(definition.Value)
	}
	return podtemplate.Definition(&x.constraints, name)
}
