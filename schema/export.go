package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/cmwa-project/cmwa/schema/jsonschema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// export is one translation.
type export struct {
	files  []*ast.File           // schema.cue and defaults.cue
	named  map[string]*ast.Field // their definitions
	fields map[string]Field      // by key

	constraints jsonschema.Translator
}

func newExport() (*export, error) {
	files, err := schemaFiles()
	if err != nil {
		return nil, err
	}
	x := &export{files: files, named: map[string]*ast.Field{}, fields: map[string]Field{}}
	for _, file := range files {
		for _, declaration := range file.Decls {
			if field, ok := declaration.(*ast.Field); ok {
				x.named[labelOf(field)] = field
			}
		}
	}
	fields, err := Fields()
	if err != nil {
		return nil, err
	}
	for _, f := range fields {
		if !f.OnlyVariable {
			x.fields[f.Key] = f
		}
	}
	for _, definition := range x.named {
		ast.Walk(definition, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && err == nil {
				err = x.settle(field)
			}
			return err == nil
		}, nil)
	}
	return x, err
}

// settle writes into a constraint what [Load] knows from attributes or checks by
// itself, as far as a single value shows it.
func (x *export) settle(field *ast.Field) error {
	f := x.fields[labelOf(field)]
	switch {
	case f.Kind == KindMapping: // without keys it may also be without a value
		field.Value = ast.NewBinExpr(token.OR, ast.NewNull(), field.Value)
	case hasAttribute(field, "tree"):
		field.Value = ast.NewIdent(podtemplate.Root)
	case hasAttribute(field, "env") && labelOf(field) == "labels":
		list, ok := field.Value.(*ast.ListLit)
		if !ok || len(list.Elts) == 0 {
			return errors.New("labels is no list")
		}
		if entries, ok := list.Elts[0].(*ast.Ellipsis); ok {
			entries.Type = ast.NewBinExpr(token.AND, entries.Type, &ast.UnaryExpr{Op: token.NMAT, X: ast.NewString("^cmwa[.]")})
		}
	case hasAttribute(field, "unused"):
		field.Value = ast.NewIdent("_")
	case hasAttribute(field, "seconds"):
		text, err := format.Node(field.Value)
		if err != nil {
			return err
		}
		bounds := fmt.Sprintf("| >=%d & <=%d & int", int(f.Shortest/time.Second), int(f.Longest/time.Second))
		field.Value, err = parser.ParseExpr("", strings.Replace(string(text), "| int", bounds, 1))
		return err
	}
	return nil
}

func labelOf(field *ast.Field) string {
	name, _, err := ast.LabelName(field.Label)
	if err != nil {
		return ""
	}
	return name
}

func hasAttribute(field *ast.Field, name string) bool {
	return slices.ContainsFunc(field.Attrs, func(a *ast.Attribute) bool {
		key, _ := a.Split()
		return key == name
	})
}
