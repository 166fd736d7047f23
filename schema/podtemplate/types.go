package podtemplate

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/cmwa-project/cmwa/schema/position"
)

//go:generate go run ./podgen

//go:embed pod.cue
var podCUE string

//go:embed overlay.cue
var overlayCUE string

// typeSet contains the types of a Pod by the names of their definitions. They are read
// from the syntax of pod.cue and overlay.cue without evaluation, so that CUE compiles only
// the types that a template uses. The syntax contains the keys of a mapping, how its lists
// merge and how messages describe a value.
type typeSet map[string]*typeDef

// typeDef is one definition. It is a mapping if it has fields. Otherwise leaf is its type.
type typeDef struct {
	fields map[string]*valueType
	leaf   valueType
}

type typeKind int

const (
	kindLeaf typeKind = iota
	kindMapping
	kindList
	kindMap // a mapping whose keys the template chooses
	kindAny // any value
)

// valueType is the type of a key, of an entry of a list, or of a definition that is not a
// mapping.
type valueType struct {
	kind     typeKind
	ref      string     // the definition that the type refers to; empty for other types
	entry    *valueType // of a list or a map
	merges   bool       // the merge combines the entries of a list with those of the Pod
	mergeKey string     // the key that identifies an entry; empty for plain values
	required bool       // a complete object must have the key
	keys     string     // the definition of the keys of a map
	must     string     // describes the value in messages
	sources  []string   // the declarations in CUE
	expr     ast.Expr   // the expression of the narrowest declaration
}

// readTypes reads the types once for all templates. The types are not changed afterwards.
// readTypes fails only if the CUE files are invalid.
var readTypes = sync.OnceValues(func() (typeSet, error) {
	types := typeSet{}
	for _, source := range []struct{ name, text string }{{"pod.cue", podCUE}, {"overlay.cue", overlayCUE}} {
		file, err := parser.ParseFile(source.name, source.text)
		if err != nil {
			return nil, fmt.Errorf("read the types of a Pod: %w", err)
		}
		for _, declaration := range file.Decls {
			if definition, ok := declaration.(*ast.Field); ok {
				types.define(definition, source.text)
			}
		}
	}
	for _, t := range types {
		for _, f := range t.fields {
			types.resolve(f)
		}
	}
	return types, nil
})

// fields returns the keys of a mapping, or nil if the definition is not a mapping.
func (types typeSet) fields(ref string) map[string]*valueType {
	if t := types[ref]; t != nil {
		return t.fields
	}
	return nil
}

// define adds a definition to the types. If the types have it already, define adds the
// declarations of the overlay to it.
func (types typeSet) define(definition *ast.Field, text string) {
	name, _, err := ast.LabelName(definition.Label)
	if err != nil {
		return
	}
	t := types[name]
	if t == nil {
		t = &typeDef{fields: map[string]*valueType{}}
		types[name] = t
	}

	body, ok := definition.Value.(*ast.StructLit)
	if !ok {
		t.leaf.read(definition, text)
		return
	}
	for _, element := range body.Elts {
		field, ok := element.(*ast.Field)
		if !ok {
			continue
		}
		key, _, err := ast.LabelName(field.Label)
		if err != nil {
			continue
		}
		if t.fields[key] == nil {
			t.fields[key] = &valueType{}
		}
		t.fields[key].read(field, text)
	}
}

// read adds one declaration of a field. A second declaration is from the overlay: it
// narrows the type, and does not change its kind.
func (f *valueType) read(field *ast.Field, text string) {
	f.readExpr(field.Value, text, f.expr == nil)
	for _, attribute := range field.Attrs {
		name, body := attribute.Split()
		switch name {
		case "must":
			f.must = strings.Trim(body, `"`)
		case "keys":
			f.keys = "#" + body
		case "need":
			f.required = body != "no"
		case "merge":
			f.merges, f.mergeKey = true, body
		}
	}
}

// readExpr adds the expression of a declaration to the type.
func (f *valueType) readExpr(expr ast.Expr, text string, first bool) {
	f.sources = append(f.sources, text[expr.Pos().Offset():expr.End().Offset()])
	if name, ok := expr.(*ast.Ident); ok && name.Name == "_" && !first {
		return
	}

	// The kind, the definition that the expression refers to, and the type of entries.
	f.expr = expr
	var inner ast.Expr
	switch e := expr.(type) {
	case *ast.Ident:
		f.ref = ""
		if strings.HasPrefix(e.Name, "#") {
			f.ref = e.Name
		}
		if e.Name == "_" {
			f.kind = kindAny
		}
	case *ast.ListLit:
		f.kind = kindList
		if open, ok := e.Elts[0].(*ast.Ellipsis); ok {
			inner = open.Type
		}
	case *ast.StructLit:
		f.kind = kindMap
		if pattern, ok := e.Elts[0].(*ast.Field); ok {
			inner = pattern.Value
		}
	default:
		f.ref = ""
	}

	if f.kind != kindList && f.kind != kindMap {
		return
	}
	if f.entry == nil {
		f.entry = &valueType{}
	}
	if inner == nil {
		f.entry.kind = kindAny
		return
	}
	f.entry.readExpr(inner, text, first)
}

// resolve sets the kind of references to mappings. All definitions must have been read.
func (types typeSet) resolve(f *valueType) {
	if f.entry != nil {
		types.resolve(f.entry)
	}
	if t := types[f.ref]; f.kind == kindLeaf && t != nil && len(t.fields) > 0 {
		f.kind = kindMapping
	}
}

// describe returns the text that follows "must be" in messages about a value.
func (types typeSet) describe(f *valueType) string {
	// The text of @must, or the kind of a list or a mapping.
	switch {
	case f.must != "":
		return f.must
	case f.kind == kindList:
		return "a list"
	case f.kind == kindMapping || f.kind == kindMap:
		return "a mapping of keys to values"
	}

	// The description of the definition that the type refers to, or the choices.
	if t := types[f.ref]; t != nil {
		return types.describe(&t.leaf)
	}
	if choices := choicesOf(f.expr); len(choices) > 0 {
		return "one of " + strings.Join(choices, ", ")
	}

	// The type of a plain value and its bounds.
	var bounds numberBounds
	bounds.read(f.expr)
	switch bounds.kind {
	case "bool":
		return "true or false"
	case "int", "int32", "int64":
		return "a whole number" + position.Bounds(bounds.lowest, bounds.highest)
	case "number":
		return "a number"
	default:
		return "text"
	}
}

// choices returns the values of an enumeration, or nil.
func (types typeSet) choices(f *valueType) []string {
	if t := types[f.ref]; t != nil && f.kind == kindLeaf {
		return types.choices(&t.leaf)
	}
	return choicesOf(f.expr)
}

func choicesOf(expr ast.Expr) []string {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return choicesOf(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return append(choicesOf(e.X), choicesOf(e.Y)...)
		}
	case *ast.BasicLit:
		if choice, err := literal.Unquote(e.Value); err == nil && e.Kind == token.STRING && choice != "" {
			return []string{choice}
		}
	}
	return nil
}

// pattern returns the regular expression of a definition that keys of a map must match. It
// returns nil if the definition is not a regular expression. Keys are then not checked, and
// TestCheckFile fails.
func (f *valueType) pattern() *regexp.Regexp {
	e, ok := f.expr.(*ast.UnaryExpr)
	if !ok || e.Op != token.MAT {
		return nil
	}
	written, ok := e.X.(*ast.BasicLit)
	if !ok {
		return nil
	}
	text, err := literal.Unquote(written.Value)
	if err != nil {
		return nil
	}
	pattern, _ := regexp.Compile(text) // nil after an error
	return pattern
}

// numberBounds are the CUE type, such as int, and the bounds of a number in an expression.
type numberBounds struct {
	kind            string
	lowest, highest *int64 // nil without a bound
}

func (b *numberBounds) read(expr ast.Expr) {
	switch e := expr.(type) {
	case *ast.Ident:
		b.kind = e.Name
	case *ast.BinaryExpr:
		if e.Op == token.AND {
			b.read(e.X)
			b.read(e.Y)
		}
	case *ast.UnaryExpr:
		number, ok := e.X.(*ast.BasicLit)
		if !ok {
			return
		}
		n, err := strconv.ParseInt(number.Value, 10, 64)
		switch {
		case err != nil:
		case e.Op == token.GEQ:
			b.lowest = &n
		case e.Op == token.LEQ:
			b.highest = &n
		}
	}
}

// definitionNames matches the names of the definitions to which an expression refers.
var definitionNames = regexp.MustCompile(`#[A-Z]\w*`)

// source returns #Pod in CUE, with only the used keys and the definitions to which these
// keys refer. For a typical template, CUE compiles this source in a quarter of the time
// that it needs for all types.
func (types typeSet) source(used map[*valueType]bool) string {
	var b strings.Builder
	// CUE rejects an unused import, so #Runes uses it.
	b.WriteString("import \"strings\"\n\n#Runes: strings.MaxRunes(253)\n")
	done := map[string]bool{}
	todo := []string{Root}
	declare := func(label string, sources []string) {
		for _, source := range sources {
			b.WriteString(label + ": " + source + "\n")
			todo = append(todo, definitionNames.FindAllString(source, -1)...)
		}
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		t := types[name]
		if t == nil || done[name] {
			continue
		}
		done[name] = true
		declare(name, t.leaf.sources)
		if len(t.fields) == 0 {
			continue
		}
		b.WriteString(name + ": {\n")
		for _, key := range slices.Sorted(maps.Keys(t.fields)) {
			if f := t.fields[key]; used[f] {
				declare("\t"+key+"?", f.sources)
			}
		}
		b.WriteString("}\n")
	}
	return b.String()
}
