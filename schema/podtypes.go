package schema

import (
	_ "embed"
	"fmt"
	"maps"
	"math"
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
var podText string

//go:embed podoverlay.cue
var podOverlayText string

// podTypes are the types of a Pod as pod.cue and its overlay write them, not as
// CUE evaluates them: the syntax says which keys a mapping has, how its lists
// merge and what to call a value, and CUE need only compile what a template
// makes use of.
type podTypes map[string]*podType

// podType is one definition: a mapping if it has fields.
type podType struct {
	fields map[string]*podField
	leaf   podField
}

type podKind int

const (
	podLeaf podKind = iota
	podMapping
	podList
	podMap  // a mapping of any keys
	podOpen // whatever
)

// podField is what a key, an entry of a list or a definition of a plain value
// may be.
type podField struct {
	kind     podKind
	ref      string    // the definition, for a mapping and some leaves
	entry    *podField // of a list or a map
	merges   bool      // a list whose entries are laid over those of the Pod
	mergeKey string    // what entries are told apart by; none for plain values
	need     bool      // a whole object must have it
	keys     string    // the definition of the keys of a map
	must     string
	from     []string // the declarations, as they are written
	expr     ast.Expr // the narrowest of them
}

// readPodTypes reads the types once for all templates; nobody changes them
// afterwards. It fails only if the schema is at fault.
var readPodTypes = sync.OnceValues(func() (podTypes, error) {
	types := podTypes{}
	for _, source := range []struct{ name, text string }{{"pod.cue", podText}, {"podoverlay.cue", podOverlayText}} {
		file, err := parser.ParseFile(source.name, source.text)
		if err != nil {
			return nil, fmt.Errorf("read the types of a Pod: %w", err)
		}
		for _, declaration := range file.Decls {
			definition, ok := declaration.(*ast.Field)
			if !ok {
				continue
			}
			types.define(definition, source.text)
		}
	}
	for _, t := range types {
		for _, f := range t.fields {
			types.settle(f)
		}
	}
	return types, nil
})

// fields returns the keys of a mapping, and none for what is no mapping.
func (types podTypes) fields(ref string) map[string]*podField {
	if t := types[ref]; t != nil {
		return t.fields
	}
	return nil
}

func (types podTypes) define(definition *ast.Field, text string) {
	name, _, err := ast.LabelName(definition.Label)
	if err != nil {
		return
	}
	t := types[name]
	if t == nil {
		t = &podType{fields: map[string]*podField{}}
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
			t.fields[key] = &podField{}
		}
		t.fields[key].read(field, text)
	}
}

// read takes in one declaration of a field. The second one is the overlay's: it
// narrows what the first says, and does not change its shape.
func (f *podField) read(field *ast.Field, text string) {
	first := f.expr == nil
	f.take(field.Value, text, first)
	for _, attribute := range field.Attrs {
		name, body := attribute.Split()
		switch name {
		case "must":
			f.must = strings.Trim(body, `"`)
		case "keys":
			f.keys = "#" + body
		case "need":
			f.need = body != "no"
		case "merge":
			f.merges, f.mergeKey = true, body
		}
	}
}

func (f *podField) take(expr ast.Expr, text string, first bool) {
	f.from = append(f.from, text[expr.Pos().Offset():expr.End().Offset()])
	if name, ok := expr.(*ast.Ident); ok && name.Name == "_" && !first {
		return
	}
	f.expr = expr
	var inner ast.Expr
	switch e := expr.(type) {
	case *ast.Ident:
		f.ref = ""
		if strings.HasPrefix(e.Name, "#") {
			f.ref = e.Name
		}
		if e.Name == "_" {
			f.kind = podOpen
		}
	case *ast.ListLit:
		f.kind = podList
		if open, ok := e.Elts[0].(*ast.Ellipsis); ok {
			inner = open.Type
		}
	case *ast.StructLit:
		f.kind = podMap
		if pattern, ok := e.Elts[0].(*ast.Field); ok {
			inner = pattern.Value
		}
	default:
		f.ref = ""
	}
	if f.kind != podList && f.kind != podMap {
		return
	}
	if f.entry == nil {
		f.entry = &podField{}
	}
	if inner == nil {
		f.entry.kind = podOpen
		return
	}
	f.entry.take(inner, text, first)
}

// settle tells references to mappings from those to plain values.
func (types podTypes) settle(f *podField) {
	if f.entry != nil {
		types.settle(f.entry)
	}
	if t := types[f.ref]; f.kind == podLeaf && t != nil && len(t.fields) > 0 {
		f.kind = podMapping
	}
}

// sentence says what a value must be.
func (types podTypes) sentence(f *podField) string {
	switch {
	case f.must != "":
		return f.must
	case f.kind == podList:
		return "a list"
	case f.kind == podMapping || f.kind == podMap:
		return "a mapping of keys to values"
	}
	if t := types[f.ref]; t != nil {
		return types.sentence(&t.leaf)
	}
	if words := podChoices(f.expr); len(words) > 0 {
		return "one of " + strings.Join(words, ", ")
	}
	bounds := podBounds{lowest: math.MinInt64, highest: math.MaxInt64}
	bounds.read(f.expr)
	switch bounds.kind {
	case "bool":
		return "true or false"
	case "int", "int32", "int64":
		var lowest, highest *int64
		if bounds.lowest != math.MinInt64 {
			lowest = &bounds.lowest
		}
		if bounds.highest != math.MaxInt64 {
			highest = &bounds.highest
		}
		return "a whole number" + position.Bounds(lowest, highest)
	case "number":
		return "a number"
	default:
		return "text"
	}
}

// choices returns the words of an enumeration.
func (types podTypes) choices(f *podField) []string {
	if t := types[f.ref]; t != nil && f.kind == podLeaf {
		return types.choices(&t.leaf)
	}
	return podChoices(f.expr)
}

func podChoices(expr ast.Expr) []string {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return podChoices(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return append(podChoices(e.X), podChoices(e.Y)...)
		}
	case *ast.BasicLit:
		if word, err := literal.Unquote(e.Value); err == nil && e.Kind == token.STRING && word != "" {
			return []string{word}
		}
	}
	return nil
}

// pattern returns the expression that the keys of a map must match, or nil if
// the definition of keys is of another form, which a test would notice.
func (f *podField) pattern() *regexp.Regexp {
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
	pattern, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	return pattern
}

// podBounds is what an expression says about a number.
type podBounds struct {
	kind            string
	lowest, highest int64
}

func (b *podBounds) read(expr ast.Expr) {
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
			b.lowest = n
		case e.Op == token.LEQ:
			b.highest = n
		}
	}
}

// definitionNames finds what an expression refers to.
var definitionNames = regexp.MustCompile(`#[A-Z]\w*`)

// source writes #Pod with some of the keys, and what these need, as CUE. A small
// schema takes CUE a quarter of the time that the whole one takes it.
func (types podTypes) source(used map[*podField]bool) string {
	var b strings.Builder
	// An import must have a use, and not every template needs one.
	b.WriteString("import \"strings\"\n\n#Runes: strings.MaxRunes(253)\n")
	done := map[string]bool{}
	todo := []string{"#Pod"}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		t := types[name]
		if t == nil || done[name] {
			continue
		}
		done[name] = true
		for _, source := range t.leaf.from {
			b.WriteString(name + ": " + source + "\n")
			todo = append(todo, definitionNames.FindAllString(source, -1)...)
		}
		if len(t.fields) == 0 {
			continue
		}
		b.WriteString(name + ": {\n")
		for _, key := range slices.Sorted(maps.Keys(t.fields)) {
			if f := t.fields[key]; used[f] {
				for _, source := range f.from {
					b.WriteString("\t" + key + "?: " + source + "\n")
					todo = append(todo, definitionNames.FindAllString(source, -1)...)
				}
			}
		}
		b.WriteString("}\n")
	}
	return b.String()
}
