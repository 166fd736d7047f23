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

// headerCUE is the beginning of the CUE file.
const headerCUE = `// The configuration of a workflow agent, pulumi-workflow-agent.yaml. To check a file:
//
//	cue vet -d '#Config' schema.cue pulumi-workflow-agent.yaml

package schema

import (
	"strings"
	"time"
)

`

// headerOfPods precedes the types of Pods in the CUE file.
const headerOfPods = `// The following definitions describe a Pod, or a part of a Pod that is merged into another
// as a strategic merge patch: no key is required, null removes a key, and keys that begin
// with a dollar sign control the merge.

`

// export is one translation of the schema to CUE or JSON Schema.
type export struct {
	files  []*ast.File           // schema.cue and defaults.cue
	named  map[string]*ast.Field // definitions of these files, by name
	fields map[string]Field      // by key

	constraints jsonschema.Translator
}

func newExport() (*export, error) {
	files, err := schemaFiles(parser.ParseComments)
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
	for _, f := range fieldTable {
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

// settle adds to a constraint the rules of its attributes and the rules that [Load] checks
// in Go, as far as they concern a single value.
func (x *export) settle(field *ast.Field) error {
	f := x.fields[labelOf(field)]
	switch {
	case f.Kind == KindMapping: // null is a mapping without keys
		field.Value = ast.NewBinExpr(token.OR, ast.NewNull(), field.Value)
	case hasAttribute(field, "tree") && !isList(field.Value):
		field.Value = ast.NewIdent(podtemplate.Root)
	case hasAttribute(field, "env") && labelOf(field) == "labels":
		list, ok := field.Value.(*ast.ListLit)
		if !ok || len(list.Elts) == 0 {
			return errors.New("labels is not a list")
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

func isList(expr ast.Expr) bool { _, ok := expr.(*ast.ListLit); return ok }

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

// CUE returns constraints, defaults and the types of a Pod template as one CUE file, for
// cue vet -d '#Config'. The file accepts what the JSON Schema accepts. It also accepts two
// kinds of Pod templates that the JSON Schema rejects: those that change parts of the Pod that
// belong to the agent, and those that add incomplete entries to lists.
func CUE() ([]byte, error) {
	x, err := newExport()
	if err != nil {
		return nil, err
	}

	var b bytes.Buffer
	b.WriteString(headerCUE)
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
	b.WriteString(headerOfPods)
	if err := podtemplate.WriteCUE(&b); err != nil {
		return nil, err
	}

	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}
