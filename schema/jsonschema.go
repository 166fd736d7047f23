package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"
)

// SchemaID names the JSON Schema of a configuration file. It is a name: nothing
// needs to be fetched from there.
const SchemaID = "https://github.com/cmwa-project/cmwa/schema/pulumi-workflow-agent.json"

// JSONSchema returns the schema of a configuration file as JSON Schema, draft
// 2020-12, for editors and for checks in other languages. It refuses what [Load]
// refuses, as far as one value or one mapping can be judged alone: YAML's own
// rules, rules across keys, files that the configuration names and the bounds of
// durations are not in it.
//
// It is translated from the syntax of the CUE files and not exported by CUE's own
// encoder, which drops bounds and defaults, refuses open mappings, makes
// alternatives of one and the same number type, and calls its definitions by
// names that editors cannot follow. The translator knows the part of CUE in which
// the files are written, and fails on anything else rather than be silent.
func JSONSchema() ([]byte, error) {
	x, err := newExport()
	if err != nil {
		return nil, err
	}
	config, err := x.mapping("#Config", "")
	if err != nil {
		return nil, err
	}
	definitions, err := x.definitions()
	if err != nil {
		return nil, err
	}
	root := ordered{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", SchemaID},
		{"title", FileName},
		{"description", "Configuration of a workflow agent. An empty file is one, too: everything can come from variables."},
	}
	root = append(append(root, nullable(config)...), member{"$defs", definitions})
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
func (x *export) mapping(name, prefix string) (ordered, error) {
	definition := x.named[name]
	if definition == nil {
		return nil, fmt.Errorf("there is no definition %s", name)
	}
	return x.structure(definition.Value, prefix)
}

func (x *export) structure(expr ast.Expr, prefix string) (ordered, error) {
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
	o := ordered{{"type", kind}}
	if len(required) > 0 {
		o = append(o, member{"required", required})
	}
	return append(o, member{"properties", properties}, member{"additionalProperties", false}), nil
}

func (x *export) properties(body *ast.StructLit, prefix string) (properties ordered, required []string, err error) {
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
			properties = append(properties, member{key, value})
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
func (x *export) key(f Field, expr ast.Expr, path string) (ordered, error) {
	inPool := strings.HasPrefix(path, poolsPrefix)
	o := ordered{{"title", path}, {"description", x.description(f, inPool)}}
	if f.Old != "" {
		current, definition := x.fields[f.Old], x.declaration(f.Old)
		if definition == nil {
			return nil, fmt.Errorf("%s is the old name of an unknown key", f.Key)
		}
		value, err := x.value(current, definition.Value, f.Old)
		if err != nil {
			return nil, err
		}
		return append(append(o, member{"deprecated", true}), value...), nil
	}
	if f.Unused != "" || f.Ignored {
		return append(o, member{"deprecated", true}), nil
	}
	value, err := x.value(f, expr, path)
	if err != nil {
		return nil, err
	}
	o = append(o, value...)
	if f.Default != "" && !inPool {
		o = append(o, member{"default", json.RawMessage(f.Default)})
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
func (x *export) value(f Field, expr ast.Expr, path string) (ordered, error) {
	switch f.Kind {
	case KindMapping:
		return x.structure(expr, path+".")
	case KindMappings:
		x.wanted["#Pool"] = true
		return ordered{{"type", "array"}, {"minItems", 1}, {"items", ordered{{"$ref", "#/$defs/Pool"}}}}, nil
	}
	o, err := x.of(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

// definitions translates everything that was referred to, and what that refers
// to.
func (x *export) definitions() (ordered, error) {
	done := map[string]ordered{}
	for {
		before := len(done)
		for _, name := range slices.Sorted(maps.Keys(x.wanted)) {
			if _, ok := done[name]; ok {
				continue
			}
			o, err := x.definition(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			done[name] = o
		}
		if len(done) == before {
			break
		}
	}
	var all ordered
	for _, name := range slices.Sorted(maps.Keys(done)) {
		all = append(all, member{name[1:], done[name]})
	}
	return all, nil
}

func (x *export) definition(name string) (ordered, error) {
	if name == "#Pool" {
		return x.mapping(name, poolsPrefix)
	}
	if definition := x.named[name]; definition != nil {
		return x.of(definition.Value)
	}
	t := x.pod[name]
	switch {
	case t == nil:
		return nil, errors.New("there is no such definition")
	case len(t.fields) == 0:
		return x.podValue(&t.leaf)
	default:
		o, err := x.podMapping(name, t)
		if name == podDefinition {
			o = append(o, member{"allOf", []any{json.RawMessage(ofTheAgent)}})
		}
		return o, err
	}
}
