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

// schemaFiles reads the syntax of schema.cue and of defaults.cue.
func schemaFiles() ([]*ast.File, error) {
	var files []*ast.File
	for _, source := range []struct{ name, text string }{{"schema.cue", schemaText}, {"defaults.cue", defaultsText}} {
		file, err := parser.ParseFile(source.name, source.text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
		files = append(files, file)
	}
	return files, nil
}

// define compiles the schema. It fails only if the schema is at fault.
func define() (*definition, error) {
	instance := build.NewContext().NewInstance("", nil)
	files, err := schemaFiles()
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := instance.AddSyntax(file); err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
	}
	d := &definition{context: cuecontext.New(), byKey: map[string]*Field{}, byVariable: map[string]*Field{}}
	root := d.context.BuildInstance(instance)
	parts := map[string]*cue.Value{"#Config": &d.config, "#Environment": &d.environment, "#Defaults": &d.defaults}
	for name, part := range parts {
		*part = root.LookupPath(cue.ParsePath(name))
		if err := part.Err(); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
	}
	everything := func(string) bool { return true }
	keys, err := fieldsOf(d.config, "", everything)
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	if keys, err = d.ofPools(root, keys); err != nil {
		return nil, fmt.Errorf("read the keys of pools: %w", err)
	}
	variables, err := fieldsOf(d.environment, "", everything)
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

// ofPools marks the keys that a pool may set, puts them first, and adds those that
// only a pool has.
func (d *definition) ofPools(root cue.Value, keys []Field) ([]Field, error) {
	pool := root.LookupPath(cue.ParsePath("#Pool"))
	ofPoolOnly := func(key string) bool {
		return !d.config.LookupPath(cue.MakePath(cue.Str(key).Optional())).Exists()
	}
	own, err := fieldsOf(pool, "pools.", ofPoolOnly)
	if err != nil {
		return nil, err
	}
	settable := map[string]bool{}
	settings, err := pool.Fields(cue.Optional(true))
	if err != nil {
		return nil, err
	}
	for settings.Next() {
		settable[settings.Selector().Unquoted()] = true
	}
	var all, process []Field
	for _, f := range keys {
		if top, _, _ := strings.Cut(f.Key, "."); settable[top] {
			f.Pool = true
			all = append(all, f)
			continue
		}
		process = append(process, f)
		if f.Kind == KindMappings {
			for _, f := range own {
				f.Pool = true
				process = append(process, f)
			}
		}
	}
	return append(all, process...), nil
}

// field returns the field of a path, and the path of its value: the same, or
// less the last step if that names an entry of a list. It returns nil for a path
// that the schema does not know.
func (d *definition) field(path string) (f *Field, at string) {
	inner, ofPool := path, false
	if rest, ok := strings.CutPrefix(path, "pools."); ok {
		index, key, deeper := strings.Cut(rest, ".")
		if _, err := strconv.Atoi(index); err == nil {
			if !deeper {
				return d.byKey["pools"], "pools"
			}
			inner, ofPool = key, true
		}
	}
	known := func(key string) *Field {
		f := d.byKey[key]
		if !ofPool {
			return f
		}
		if f == nil || !f.Pool {
			return d.byKey["pools."+key]
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
