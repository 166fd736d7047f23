package schema

import (
	_ "embed"
	"fmt"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"
)

//go:embed schema.cue
var schemaText string

//go:embed defaults.cue
var defaultsText string

// definition is the schema in one CUE context. It serves one load.
type definition struct {
	context     *cue.Context
	config      cue.Value // #Config
	environment cue.Value // #Environment
	defaults    cue.Value // #Defaults
	fields      []Field
	byKey       map[string]*Field // those of #Config
	byVariable  map[string]*Field
}

// define compiles the schema. It fails only if the schema is at fault.
func define() (*definition, error) {
	instance := build.NewContext().NewInstance("", nil)
	for _, source := range []struct{ name, text string }{{"schema.cue", schemaText}, {"defaults.cue", defaultsText}} {
		file, err := parser.ParseFile(source.name, source.text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
		if err := instance.AddSyntax(file); err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
	}
	d := &definition{context: cuecontext.New(), byKey: map[string]*Field{}, byVariable: map[string]*Field{}}
	root := d.context.BuildInstance(instance)
	for name, part := range map[string]*cue.Value{"#Config": &d.config, "#Environment": &d.environment, "#Defaults": &d.defaults} {
		*part = root.LookupPath(cue.ParsePath(name))
		if err := part.Err(); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
	}
	keys, err := fieldsOf(d.config, "")
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	variables, err := fieldsOf(d.environment, "")
	if err != nil {
		return nil, fmt.Errorf("read the variables: %w", err)
	}
	for i := range variables {
		variables[i].OnlyVariable = true
	}
	d.fields = append(keys, variables...)
	for i := range d.fields {
		f := &d.fields[i]
		if !f.OnlyVariable {
			d.byKey[f.Key] = f
		}
		if f.Variable != "" {
			d.byVariable[f.Variable] = f
		}
	}
	return d, nil
}

// field returns the field of a path, which may go on to an entry of a list.
func (d *definition) field(path string) (f *Field, entry bool) {
	if f := d.byKey[path]; f != nil {
		return f, false
	}
	if end := strings.LastIndexByte(path, '.'); end > 0 {
		if f := d.byKey[path[:end]]; f != nil && f.Kind == KindList {
			return f, true
		}
	}
	return nil, false
}
