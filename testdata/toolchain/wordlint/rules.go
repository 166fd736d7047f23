package main

import (
	"go/ast"
	"go/doc"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxColumns, maxTestName and maxUncommented are the limits of the rules lines,
// tests and stages.
const (
	maxColumns     = 120
	maxTestName    = 40
	maxUncommented = 25
)

// kind distinguishes declared names.
type kind int

const (
	otherName kind = iota // a function, parameter, variable, constant or label
	typeName
	memberName // a method or field
)

// declaration is a name at the place where it is declared.
type declaration struct {
	name *ast.Ident
	kind kind
}

// declarations lists the names that a file declares, each once.
func declarations(tree *ast.File) []declaration {
	var list []declaration
	kinds := map[*ast.Ident]kind{}
	members := func(fields *ast.FieldList) {
		for _, field := range fields.List {
			for _, name := range field.Names {
				kinds[name] = memberName
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				kinds[n.Name] = memberName
			}
		case *ast.StructType:
			members(n.Fields)
		case *ast.InterfaceType:
			members(n.Methods)
		case *ast.TypeSpec:
			kinds[n.Name] = typeName
		case *ast.Ident:
			kind, known := kinds[n]
			// The objects of the parser lead to the place of declaration.
			declared := n.Obj != nil && n.Obj.Pos() == n.Pos()
			if n.Name != "_" && (known || declared) {
				list = append(list, declaration{n, kind})
			}
		}
		return true
	})
	return list
}

// lines reports lines that are too wide. A tab has four columns.
func (l *linter) lines(s *source) {
	if s.tree == nil && path.Ext(s.path) != ".md" {
		return
	}
	fenced := false
	for i, line := range strings.Split(string(s.text), "\n") {
		if s.tree == nil {
			trimmed := strings.TrimSpace(line)
			fence := strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")
			fenced = fenced != fence
			if fenced || fence || strings.HasPrefix(trimmed, "|") || urlAlone.MatchString(trimmed) {
				continue
			}
		} else if strings.HasPrefix(line, "//go:") {
			continue
		}
		if width := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); width > maxColumns {
			l.report(s, i+1, "lines", "%d columns, more than %d", width, maxColumns)
		}
	}
}

var urlAlone = regexp.MustCompile(`^[-*<(\[]*(\S*\]: ?)?https?://\S+$`)

// docs reports exported names without a doc comment that begins with the name.
func (l *linter) docs(s *source) {
	if s.tree == nil || s.isTest() || s.isFixture() || s.tree.Name.Name == "main" {
		return
	}
	check := func(name *ast.Ident, text string) {
		switch {
		case !name.IsExported():
		case strings.TrimSpace(text) == "":
			l.report(s, s.line(name.Pos()), "docs", "%s has no doc comment", name.Name)
		case !beginsWithName(text, name.Name):
			l.report(s, s.line(name.Pos()), "docs", "the doc comment of %s does not begin with the name", name.Name)
		}
	}
	for _, decl := range s.tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil || ast.IsExported(receiver(decl)) {
				check(decl.Name, decl.Doc.Text())
			}
		case *ast.GenDecl:
			l.groupDocs(decl, check)
		}
	}
}

// groupDocs checks a declaration of types, constants or variables. One comment
// can document a group of constants or variables, and a comment at the end of
// the line can document one of them.
func (l *linter) groupDocs(decl *ast.GenDecl, check func(*ast.Ident, string)) {
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			text := spec.Doc.Text()
			if text == "" {
				text = decl.Doc.Text()
			}
			check(spec.Name, text)
		case *ast.ValueSpec:
			if decl.Lparen.IsValid() && (decl.Doc != nil || spec.Doc == nil && spec.Comment != nil) {
				continue
			}
			text := spec.Doc.Text() + decl.Doc.Text()
			for i, name := range spec.Names {
				if i == 0 || text == "" {
					check(name, text)
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(f *ast.FuncDecl) string {
	name := ""
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return true
	})
	return name
}

func beginsWithName(text, name string) bool {
	for _, article := range []string{"A ", "An ", "The "} {
		text = strings.TrimPrefix(text, article)
	}
	after, ok := strings.CutPrefix(text, name)
	next, _ := utf8.DecodeRuneInString(after)
	return ok && !unicode.IsLetter(next) && !unicode.IsDigit(next)
}

// stages reports long functions without a comment in the body.
func (l *linter) stages(s *source) {
	if s.tree == nil || s.isTest() || s.isFixture() {
		return
	}
	for _, decl := range s.tree.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || isUniform(f.Body.List) {
			continue
		}
		lines := s.line(f.Body.Rbrace) - s.line(f.Body.Lbrace) - 1
		commented := false
		for _, group := range s.tree.Comments {
			commented = commented || f.Body.Pos() < group.Pos() && group.End() < f.Body.End()
		}
		if lines > maxUncommented && !commented {
			l.report(s, s.line(f.Pos()), "stages", "%s has %d lines and no comment in the body", f.Name.Name, lines)
		}
	}
}

// isUniform reports whether a body consists only of a table, only of calls of the same
// function, or only of one switch or select, which a return may follow.
func isUniform(body []ast.Stmt) bool {
	if len(body) > 0 && len(body) <= 2 {
		last, isReturn := body[len(body)-1].(*ast.ReturnStmt)
		switch body[0].(type) {
		case *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
			return len(body) == 1 || isReturn
		}
		if len(body) == 1 && isReturn {
			return len(last.Results) == 1 && isTable(last.Results[0])
		}
	}
	callee := ""
	for _, stmt := range body {
		expr, ok := stmt.(*ast.ExprStmt)
		if !ok {
			return false
		}
		name := calledBy(expr.X)
		if name == "" || callee != "" && callee != name {
			return false
		}
		callee = name
	}
	return true
}

// isTable reports whether an expression is a composite literal or its address.
func isTable(expr ast.Expr) bool {
	if unary, ok := expr.(*ast.UnaryExpr); ok {
		expr = unary.X
	}
	_, ok := expr.(*ast.CompositeLit)
	return ok
}

// calledBy returns the name of the called function. It returns the same name for all methods
// of one variable, because a flag set has a method for each type of flag.
func calledBy(expr ast.Expr) string {
	call, ok := expr.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		if variable, ok := fun.X.(*ast.Ident); ok {
			return variable.Name + "."
		}
	}
	return ""
}

// shadow reports declarations that shadow a predeclared identifier.
func (l *linter) shadow(s *source) {
	if s.tree == nil {
		return
	}
	for _, d := range declarations(s.tree) {
		if d.kind != memberName && doc.IsPredeclared(d.name.Name) {
			l.report(s, s.line(d.name.Pos()), "shadow", "%s shadows a predeclared identifier", d.name.Name)
		}
	}
}
