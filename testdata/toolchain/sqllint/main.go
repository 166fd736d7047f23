// Command sqllint reports statements of the service's database that MySQL or MariaDB do not take, although
// SQLite does.
//
//	sqllint DIR
//
// DIR contains the Go files of one package. A statement is the argument for a parameter with the name query of a
// function of this package. It must be a constant, so that sqllint sees it, or a parameter with this name. sqllint
// prints one line for each finding, with file and line, and exits with 1 if there are findings. Its grammar is that of
// TiDB, which takes all statements of MySQL 8. It does not read sqlite.go, which has the statements for SQLite alone.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	sql "github.com/pingcap/tidb/pkg/parser"
	sqlast "github.com/pingcap/tidb/pkg/parser/ast"
	_ "github.com/pingcap/tidb/pkg/parser/test_driver" // constants of statements
)

var errFindings = errors.New("there are findings")

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: sqllint DIR")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1]); errors.Is(err, errFindings) {
		os.Exit(1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "sqllint:", err)
		os.Exit(2)
	}
}

// run prints the findings in the statements of a package.
func run(w io.Writer, directory string) error {
	names, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	var trees []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "sqlite.go" {
			continue
		}
		tree, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		trees = append(trees, tree)
	}

	// Find the values of constants. The packages that the files import are not needed for this.
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: noImports{}, Error: func(error) {}}
	_, _ = config.Check(directory, files, trees, info) // its errors are those of missing imports

	statements, findings := 0, 0
	report := func(at ast.Node, format string, args ...any) {
		findings++
		fmt.Fprintf(w, "%s: %s\n", files.Position(at.Pos()), fmt.Sprintf(format, args...))
	}
	for _, tree := range trees {
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			query := queryOf(call, info)
			if query == nil || isQuery(query, info) {
				return true
			}
			if inner, ok := query.(*ast.CallExpr); ok && queryOf(inner, info) != nil {
				return true // the statement of the inner call is checked
			}
			value := info.Types[query].Value
			if value == nil || value.Kind() != constant.String {
				report(query, "the statement is not a constant")
				return true
			}
			statements++
			for _, problem := range check(constant.StringVal(value)) {
				report(query, "%s", problem)
			}
			return true
		})
	}
	switch {
	case findings > 0:
		return errFindings
	case statements == 0:
		return fmt.Errorf("%s has no statements", directory)
	}
	return nil
}

type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not imported", path)
}

// queryOf returns the argument for the parameter query of the called function, and nil if it has none.
func queryOf(call *ast.CallExpr, info *types.Info) ast.Expr {
	var called types.Object
	f := call.Fun
	if with, ok := f.(*ast.IndexExpr); ok { // with a type argument
		f = with.X
	}
	switch function := f.(type) {
	case *ast.Ident:
		called = info.Uses[function]
	case *ast.SelectorExpr:
		called = info.Uses[function.Sel]
	}
	if called == nil {
		return nil
	}
	signature, ok := called.Type().(*types.Signature)
	if !ok {
		return nil
	}
	for i := range min(signature.Params().Len(), len(call.Args)) {
		if signature.Params().At(i).Name() == "query" {
			return call.Args[i]
		}
	}
	return nil
}

// isQuery reports whether an expression is a parameter or a variable with the name query.
func isQuery(e ast.Expr, info *types.Info) bool {
	name, ok := e.(*ast.Ident)
	if !ok || name.Name != "query" {
		return false
	}
	variable, ok := info.Uses[name].(*types.Var)
	return ok && variable.Kind() == types.ParamVar
}

// check returns the problems of a statement.
func check(statement string) (problems []string) {
	// The names in braces stand for tables and columns: see JobKind.sql.
	plain := strings.NewReplacer("{", "", "}", "").Replace(statement)
	tree, err := sql.New().ParseOneStmt(plain, "", "")
	if err != nil {
		return []string{"MySQL does not take this statement: " + err.Error()}
	}
	if strings.Contains(statement, "||") {
		problems = append(problems, "|| is OR in MySQL: use CONCAT")
	}
	changed, with := "", (*sqlast.WithClause)(nil)
	switch s := tree.(type) {
	case *sqlast.UpdateStmt:
		changed, with = tables(s.TableRefs)[0], s.With
	case *sqlast.DeleteStmt:
		changed, with = tables(s.TableRefs)[0], s.With
	}
	if with != nil {
		problems = append(problems, "MariaDB has no WITH before UPDATE and DELETE")
	}
	if changed != "" && slices.Contains(tables(tree)[1:], changed) {
		problems = append(problems, "MySQL reads no table that the statement changes: "+changed)
	}
	return problems
}

// tables returns the names of the tables in a statement, in their order.
func tables(n sqlast.Node) []string {
	var v names
	n.Accept(&v)
	return v
}

type names []string

func (v *names) Enter(n sqlast.Node) (sqlast.Node, bool) {
	if table, ok := n.(*sqlast.TableName); ok {
		*v = append(*v, table.Name.L)
	}
	return n, false
}

func (v *names) Leave(n sqlast.Node) (sqlast.Node, bool) { return n, true }
