package schema

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"
)

//go:embed schema.cue
var schemaText string

//go:embed defaults.cue
var defaultsText string

// definition is the schema in one CUE context. It is used for one load.
type definition struct {
	context     *cue.Context
	config      cue.Value // #Config
	environment cue.Value // #Environment
	defaults    cue.Value // #Defaults
	fields      []Field
	byKey       map[string]*Field // without those of #Environment
	byVariable  map[string]*Field
}

// schemaFiles returns the syntax of schema.cue and of defaults.cue.
func schemaFiles(options ...parser.Option) ([]*ast.File, error) {
	var files []*ast.File
	for _, source := range []struct{ name, text string }{{"schema.cue", schemaText}, {"defaults.cue", defaultsText}} {
		file, err := parser.ParseFile(source.name, source.text, options...)
		if err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

func compile(context *cue.Context, options ...parser.Option) (cue.Value, error) {
	instance := build.NewContext().NewInstance("", nil)
	files, err := schemaFiles(options...)
	if err != nil {
		return cue.Value{}, err
	}
	for _, file := range files {
		if err := instance.AddSyntax(file); err != nil {
			return cue.Value{}, fmt.Errorf("read the schema: %w", err)
		}
	}
	return context.BuildInstance(instance), nil
}

// define compiles the schema. It fails only if the schema itself is invalid.
func define() (*definition, error) {
	d := &definition{
		context: cuecontext.New(), fields: Fields(), byKey: map[string]*Field{}, byVariable: map[string]*Field{},
	}
	root, err := compile(d.context)
	if err != nil {
		return nil, err
	}
	parts := map[string]*cue.Value{"#Config": &d.config, "#Environment": &d.environment, "#Defaults": &d.defaults}
	for name, part := range parts {
		*part = root.LookupPath(cue.ParsePath(name))
		if err := part.Err(); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
	}

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

// field returns the field of a path, and the path of its value, which is shorter by one
// step if the last step is an entry of a list. It returns nil for an unknown path.
func (d *definition) field(path string) (f *Field, at string) {
	inner, ofPool := path, false // inner is the path within a pool or the top level
	if inPools, ok := strings.CutPrefix(path, poolsPrefix); ok {
		index, key, deeper := strings.Cut(inPools, ".")
		if _, err := strconv.Atoi(index); err == nil {
			if !deeper {
				return d.byKey["pools"], "pools"
			}
			inner, ofPool = key, true
		}
	}

	known := func(key string) *Field {
		f := d.byKey[key]
		if ofPool && (f == nil || !f.Pool) {
			return d.byKey[poolsPrefix+key]
		}
		return f
	}
	if f := known(inner); f != nil {
		return f, path
	}
	if end := strings.LastIndexByte(inner, '.'); end > 0 {
		if f := known(inner[:end]); f != nil && f.Kind == KindList {
			return f, path[:strings.LastIndexByte(path, '.')]
		}
	}
	return nil, ""
}
