package jsonschema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
)

// durationPattern matches Go's notation of durations without a minus sign, because no key
// accepts a negative duration.
const durationPattern = `^[+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

// Translator translates CUE expressions and records the definitions to which they
// refer. The zero value is ready for use.
type Translator struct {
	referenced map[string]bool
}

// reference returns a reference to a definition, whose name begins with #.
func (t *Translator) reference(name string) Object {
	if t.referenced == nil {
		t.referenced = map[string]bool{}
	}
	t.referenced[name] = true
	return Object{{"$ref", "#/$defs/" + name[1:]}}
}

// Definitions returns every definition that a translation refers to, directly or through
// other definitions, by name without #. define translates one definition.
func (t *Translator) Definitions(define func(name string) (Object, error)) (Object, error) {
	done := map[string]Object{}
	for len(done) < len(t.referenced) {
		for _, name := range slices.Sorted(maps.Keys(t.referenced)) {
			if _, ok := done[name]; ok {
				continue
			}
			o, err := define(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			done[name] = o
		}
	}
	var all Object
	for _, name := range slices.Sorted(maps.Keys(done)) {
		all = append(all, Member{name[1:], done[name]})
	}
	return all, nil
}

func (t *Translator) translate(expr ast.Expr) (Object, error) {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return t.translate(e.X)
	case *ast.Ident:
		return t.Name(e.Name)
	case *ast.SelectorExpr:
		if text, _ := format.Node(e); string(text) == "time.Duration" {
			return Object{{"type", "string"}, {"pattern", durationPattern}}, nil
		}
	case *ast.CallExpr:
		return t.call(e)
	case *ast.BasicLit:
		return literalOf(e)
	case *ast.UnaryExpr:
		return t.bound(e)
	case *ast.BinaryExpr:
		switch e.Op {
		case token.OR:
			return t.either(e)
		case token.AND:
			return t.Translate(e.X, e.Y)
		}
	case *ast.ListLit:
		return t.list(e)
	case *ast.StructLit:
		return t.open(e)
	}
	return nil, fmt.Errorf("%T has no translation", expr)
}

// Name returns the schema of a predeclared name of CUE, or a reference to a
// definition, which [Translator.Definitions] then contains.
func (t *Translator) Name(name string) (Object, error) {
	if strings.HasPrefix(name, "#") {
		return t.reference(name), nil
	}
	switch name {
	case "_":
		return Object{}, nil
	case "string", "number":
		return Object{{"type", name}}, nil
	case "bool":
		return Object{{"type", "boolean"}}, nil
	case "int", "int64": // JSON parsers disagree about numbers near the bounds of int64
		return Object{{"type", "integer"}}, nil
	case "int32":
		return Object{{"type", "integer"}, {"minimum", -1 << 31}, {"maximum", 1<<31 - 1}}, nil
	}
	return nil, fmt.Errorf("%s has no translation", name)
}

func (t *Translator) call(e *ast.CallExpr) (Object, error) {
	text, err := format.Node(e.Fun)
	if err == nil && string(text) == "strings.MaxRunes" && len(e.Args) == 1 {
		if number, ok := e.Args[0].(*ast.BasicLit); ok {
			return Object{{"type", "string"}, {"maxLength", json.Number(number.Value)}}, nil
		}
	}
	return nil, fmt.Errorf("the call of %s has no translation", text)
}

func literalOf(e *ast.BasicLit) (Object, error) {
	switch e.Kind {
	case token.STRING:
		text, err := literal.Unquote(e.Value)
		if err != nil {
			return nil, err
		}
		return Object{{"type", "string"}, {"enum", []any{text}}}, nil
	case token.NULL:
		return Object{{"type", "null"}}, nil
	}
	return nil, fmt.Errorf("the literal %s has no translation", e.Value)
}

func (t *Translator) bound(e *ast.UnaryExpr) (Object, error) {
	l, ok := e.X.(*ast.BasicLit)
	if !ok {
		return nil, fmt.Errorf("%s before an expression that is not a literal has no translation", e.Op)
	}
	switch e.Op {
	case token.MAT, token.NMAT:
		pattern, err := literal.Unquote(l.Value)
		if err != nil {
			return nil, err
		}
		if e.Op == token.NMAT {
			return Object{{"type", "string"}, {"not", Object{{"pattern", pattern}}}}, nil
		}
		return Object{{"type", "string"}, {"pattern", pattern}}, nil
	}
	keyword := map[token.Token]string{
		token.GEQ: "minimum", token.LEQ: "maximum", token.GTR: "exclusiveMinimum", token.LSS: "exclusiveMaximum",
	}[e.Op]
	if _, err := strconv.ParseFloat(l.Value, 64); err != nil || keyword == "" {
		return nil, fmt.Errorf("%s has no translation", e.Op)
	}
	return Object{{"type", "number"}, {keyword, json.Number(l.Value)}}, nil
}

// either returns the schema of alternatives. Text literals among them become one
// enumeration. If the empty text is the only one, it becomes a pattern after the others: editors
// report the first alternative, which would then be the only valid value "".
func (t *Translator) either(e *ast.BinaryExpr) (Object, error) {
	var choices, others []any
	for _, expr := range alternatives(e) {
		o, err := t.translate(expr)
		if err != nil {
			return nil, err
		}
		if enum, ok := o.Get("enum").([]any); ok {
			choices = append(choices, enum...)
			continue
		}
		others = append(others, o)
	}
	enumeration := Object{{"type", "string"}, {"enum", choices}}
	switch {
	case len(others) == 0:
		return enumeration, nil
	case slices.Equal(choices, []any{""}):
		others = append(others, Object{{"type", "string"}, {"pattern", "^$"}})
	case len(choices) > 0:
		others = append([]any{enumeration}, others...)
	}
	return Object{{"anyOf", others}}, nil
}

func alternatives(expr ast.Expr) []ast.Expr {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return alternatives(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return append(alternatives(e.X), alternatives(e.Y)...)
		}
	}
	return []ast.Expr{expr}
}

// Translate returns the schema of the values that match all expressions.
func (t *Translator) Translate(exprs ...ast.Expr) (Object, error) {
	var all Object
	var apart []any
	for _, expr := range exprs {
		o, err := t.translate(expr)
		if err != nil {
			return nil, err
		}
		if merged, ok := merge(all, o); ok {
			all = merged
		} else {
			apart = append(apart, o)
		}
	}
	if len(apart) > 0 {
		more, _ := all.Get("allOf").([]any)
		all = slices.DeleteFunc(slices.Clone(all), func(m Member) bool { return m.Name == "allOf" })
		all = append(all, Member{"allOf", append(slices.Clone(more), apart...)})
	}
	return all, nil
}

func (t *Translator) list(e *ast.ListLit) (Object, error) {
	o := Object{{"type", "array"}}
	if least := len(e.Elts) - 1; least > 0 {
		o = append(o, Member{"minItems", least})
	}
	tail, ok := e.Elts[len(e.Elts)-1].(*ast.Ellipsis)
	if !ok {
		return nil, errors.New("a closed list has no translation")
	}
	if tail.Type == nil {
		return o, nil
	}
	items, err := t.translate(tail.Type)
	return append(o, Member{"items", items}), err
}

func (t *Translator) open(e *ast.StructLit) (Object, error) {
	if len(e.Elts) == 1 {
		if field, ok := e.Elts[0].(*ast.Field); ok {
			if _, ok := field.Label.(*ast.ListLit); ok {
				values, err := t.translate(field.Value)
				return Object{{"type", "object"}, {"additionalProperties", values}}, err
			}
		}
	}
	return nil, errors.New("a mapping without a name has no translation")
}
