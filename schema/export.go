package schema

import (
	"bytes"
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
			entries.Type = ast.NewBinExpr(token.AND, entries.Type,
				&ast.UnaryExpr{Op: token.NMAT, X: ast.NewString("^cmwa[.]")})
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

// CUE returns constraints, defaults and the types of a pod template as one CUE
// file, for cue vet -d '#Config'. It judges as the JSON Schema does, but for what
// a Pod must leave to the agent and what new entries of its lists need.
func CUE() ([]byte, error) {
	x, err := newExport()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("// The configuration of a workflow agent, pulumi-workflow-agent.yaml. Check one with\n//\n//\tcue vet -d '#Config' schema.cue pulumi-workflow-agent.yaml\n\npackage schema\n\n")
	b.WriteString("import (\n\t\"strings\"\n\t\"time\"\n)\n\n")
	for _, file := range x.files {
		for _, declaration := range file.Decls {
			switch declaration.(type) {
			case *ast.Package, *ast.ImportDecl:
				continue
			}
			text, err := format.Node(declaration)
			if err != nil {
				return nil, fmt.Errorf("write the schema: %w", err)
			}
			b.Write(text)
			b.WriteString("\n\n")
		}
	}
	b.WriteString("// What follows is a Pod, or a part of one that is laid over another as a strategic\n// merge patch: nothing is required, a null takes a key away, and keys that begin\n// with a dollar sign say how to merge.\n\n")
	if err := podtemplate.WriteCUE(&b); err != nil {
		return nil, err
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}
