package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
)

// durationPattern is Go's notation, without a sign: no key takes less than zero.
const durationPattern = `^[+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

// of translates an expression.
func (x *export) of(expr ast.Expr) (ordered, error) {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return x.of(e.X)
	case *ast.Ident:
		return x.name(e.Name)
	case *ast.SelectorExpr:
		if text, _ := format.Node(e); string(text) == "time.Duration" {
			return ordered{{"type", "string"}, {"pattern", durationPattern}}, nil
		}
	case *ast.CallExpr:
		return x.call(e)
	case *ast.BasicLit:
		return literalOf(e)
	case *ast.UnaryExpr:
		return x.bound(e)
	case *ast.BinaryExpr:
		switch e.Op {
		case token.OR:
			return x.either(e)
		case token.AND:
			return x.both(e.X, e.Y)
		}
	case *ast.ListLit:
		return x.list(e)
	case *ast.StructLit:
		return x.open(e)
	}
	return nil, fmt.Errorf("%T has no translation", expr)
}

func (x *export) name(name string) (ordered, error) {
	if strings.HasPrefix(name, "#") {
		x.wanted[name] = true
		return ordered{{"$ref", "#/$defs/" + name[1:]}}, nil
	}
	switch name {
	case "_":
		return ordered{}, nil
	case "string", "number":
		return ordered{{"type", name}}, nil
	case "bool":
		return ordered{{"type", "boolean"}}, nil
	case "int", "int64": // JSON's readers disagree about numbers near the bounds of int64
		return ordered{{"type", "integer"}}, nil
	case "int32":
		return ordered{{"type", "integer"}, {"minimum", -1 << 31}, {"maximum", 1<<31 - 1}}, nil
	}
	return nil, fmt.Errorf("%s has no translation", name)
}

func (x *export) call(e *ast.CallExpr) (ordered, error) {
	text, err := format.Node(e.Fun)
	if err == nil && string(text) == "strings.MaxRunes" && len(e.Args) == 1 {
		if number, ok := e.Args[0].(*ast.BasicLit); ok {
			return ordered{{"type", "string"}, {"maxLength", json.Number(number.Value)}}, nil
		}
	}
	return nil, fmt.Errorf("the call of %s has no translation", text)
}

func literalOf(e *ast.BasicLit) (ordered, error) {
	switch e.Kind {
	case token.STRING:
		word, err := literal.Unquote(e.Value)
		if err != nil {
			return nil, err
		}
		return ordered{{"type", "string"}, {"enum", []any{word}}}, nil
	case token.NULL:
		return ordered{{"type", "null"}}, nil
	}
	return nil, fmt.Errorf("the literal %s has no translation", e.Value)
}

func (x *export) bound(e *ast.UnaryExpr) (ordered, error) {
	l, ok := e.X.(*ast.BasicLit)
	if !ok {
		return nil, fmt.Errorf("%s before what is no literal has no translation", e.Op)
	}
	switch e.Op {
	case token.MAT, token.NMAT:
		pattern, err := literal.Unquote(l.Value)
		if err != nil {
			return nil, err
		}
		if e.Op == token.NMAT {
			return ordered{{"type", "string"}, {"not", ordered{{"pattern", pattern}}}}, nil
		}
		return ordered{{"type", "string"}, {"pattern", pattern}}, nil
	}
	keyword := map[token.Token]string{token.GEQ: "minimum", token.LEQ: "maximum", token.GTR: "exclusiveMinimum", token.LSS: "exclusiveMaximum"}[e.Op]
	if _, err := strconv.ParseFloat(l.Value, 64); err != nil || keyword == "" {
		return nil, fmt.Errorf("%s has no translation", e.Op)
	}
	return ordered{{"type", "number"}, {keyword, json.Number(l.Value)}}, nil
}

// either translates alternatives; words among them make one enumeration.
func (x *export) either(e *ast.BinaryExpr) (ordered, error) {
	var words, others []any
	for _, expr := range alternatives(e) {
		o, err := x.of(expr)
		if err != nil {
			return nil, err
		}
		if enum, ok := o.get("enum").([]any); ok {
			words = append(words, enum...)
			continue
		}
		others = append(others, o)
	}
	enumeration := ordered{{"type", "string"}, {"enum", words}}
	switch {
	case len(others) == 0:
		return enumeration, nil
	case len(words) > 0:
		others = append([]any{enumeration}, others...)
	}
	return ordered{{"anyOf", others}}, nil
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

// both translates what must hold at once.
func (x *export) both(exprs ...ast.Expr) (ordered, error) {
	var all ordered
	var apart []any
	for _, expr := range exprs {
		o, err := x.of(expr)
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
		more, _ := all.get("allOf").([]any)
		all = append(slices.DeleteFunc(slices.Clone(all), func(m member) bool { return m.key == "allOf" }), member{"allOf", append(slices.Clone(more), apart...)})
	}
	return all, nil
}

func (x *export) list(e *ast.ListLit) (ordered, error) {
	o := ordered{{"type", "array"}}
	if least := len(e.Elts) - 1; least > 0 {
		o = append(o, member{"minItems", least})
	}
	rest, ok := e.Elts[len(e.Elts)-1].(*ast.Ellipsis)
	if !ok {
		return nil, errors.New("a closed list has no translation")
	}
	if rest.Type == nil {
		return o, nil
	}
	items, err := x.of(rest.Type)
	return append(o, member{"items", items}), err
}

func (x *export) open(e *ast.StructLit) (ordered, error) {
	if len(e.Elts) == 1 {
		if field, ok := e.Elts[0].(*ast.Field); ok {
			if _, ok := field.Label.(*ast.ListLit); ok {
				values, err := x.of(field.Value)
				return ordered{{"type", "object"}, {"additionalProperties", values}}, err
			}
		}
	}
	return nil, errors.New("a mapping without a name has no translation")
}
