package main

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// units contains, for each directory, the names with which the name of a test can begin. own has
// all names of the package. exported has only its exported names, which tests of other
// packages can also use. The names are in lower case and without underscores.
type units struct{ own, exported map[string]map[string]bool }

// units collects the names of all packages.
func (l *linter) units() units {
	u := units{map[string]map[string]bool{}, map[string]map[string]bool{}}
	for _, s := range l.sources {
		if s.tree == nil || s.isTest() {
			continue
		}

		// 1. The directory and the file.
		directory := s.directory()
		if u.own[directory] == nil {
			u.own[directory], u.exported[directory] = map[string]bool{}, map[string]bool{}
		}
		add := func(name string) {
			u.own[directory][unit(name)] = true
			if ast.IsExported(name) {
				u.exported[directory][unit(name)] = true
			}
		}
		add(path.Base(directory))
		add(strings.TrimSuffix(path.Base(s.path), ".go"))

		// 2. The declarations of the package, and the subcommands of a program.
		for _, decl := range s.tree.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				add(decl.Name.Name)
			case *ast.GenDecl:
				for _, name := range specNames(decl.Specs...) {
					add(name.Name)
				}
			}
		}
		if within(s.path, "cmd") {
			ast.Inspect(s.tree, func(n ast.Node) bool {
				if pair, ok := n.(*ast.KeyValueExpr); ok {
					key, _ := pair.Key.(*ast.Ident)
					value, _ := pair.Value.(*ast.BasicLit)
					if key != nil && value != nil && key.Name == "Name" && value.Kind == token.STRING {
						name, _ := strconv.Unquote(value.Value)
						add(name)
					}
				}
				return true
			})
		}
	}
	return u
}

// unit returns a name in the form in which names of units are compared.
func unit(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}

// specNames lists the names that the specs of a declaration declare.
func specNames(specs ...ast.Spec) (names []*ast.Ident) {
	for _, spec := range specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			names = append(names, spec.Name)
		case *ast.ValueSpec:
			names = append(names, spec.Names...)
		}
	}
	return names
}

// tests reports test functions whose name begins with no unit.
func (l *linter) tests(s *source, all units) {
	if s.tree == nil || !s.isTest() || s.isFixture() {
		return
	}

	// 1. Collect the units: of the directory, and of the packages that its tests import.
	allowed := []map[string]bool{all.own[s.directory()], {unit(path.Base(s.directory())): true}}
	if within(s.path, "cmd") {
		allowed = append(allowed, map[string]bool{unit(strings.TrimSuffix(path.Base(s.path), "_test.go")): true})
	}
	for _, other := range l.sources {
		if other.tree == nil || !other.isTest() || other.directory() != s.directory() {
			continue
		}
		for _, spec := range other.tree.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			if directory, ours := strings.CutPrefix(name, l.module+"/"); ours {
				allowed = append(allowed, all.exported[directory])
			}
		}
	}

	// 2. Check each test function.
	for _, decl := range s.tree.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name == "TestMain" {
			continue
		}
		name := f.Name.Name
		after, ok := testSuffix(name)
		if !ok {
			continue
		}
		if !startsWithUnit(after, allowed) {
			l.report(s, s.line(f.Pos()), "tests", "the name %s does not begin with what it tests", name)
		}
	}
}

// testSuffix returns the name of a test function without its prefix.
func testSuffix(name string) (string, bool) {
	for _, prefix := range []string{"Test", "Fuzz", "Benchmark"} {
		after, ok := strings.CutPrefix(name, prefix)
		first, _ := utf8.DecodeRuneInString(after)
		if ok && !unicode.IsLower(first) {
			return after, true
		}
	}
	return "", false
}

// startsWithUnit reports whether the first parts of a name are a unit. A name that begins
// with an article begins with no unit: TestAWait does not test the function await.
func startsWithUnit(name string, allowed []map[string]bool) bool {
	prefix := ""
	for i, part := range parts(name) {
		if i == 0 && (part == "A" || part == "An" || part == "The") {
			return false
		}
		prefix += strings.ToLower(part)
		for _, set := range allowed {
			if set[prefix] {
				return true
			}
		}
	}
	return false
}
