// Command sqllint reports statements of the service's database that MySQL or MariaDB do not take, although
// SQLite does. It is a tool for go vet:
//
//	go vet -vettool=bin/sqllint ./cloud/server/store
//
// A statement is the argument for a parameter with the name query of a function of the package. It must be a constant,
// so that sqllint sees it, or a parameter with this name. Its grammar is that of TiDB, which takes all statements of
// MySQL 8. It does not read tests, and sqlite.go, which has the statements for SQLite alone.
package main

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	sql "github.com/pingcap/tidb/pkg/parser"
	sqlast "github.com/pingcap/tidb/pkg/parser/ast"
	_ "github.com/pingcap/tidb/pkg/parser/test_driver" // constants of statements
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
	"golang.org/x/tools/go/types/typeutil"
)

var analyzer = &analysis.Analyzer{Name: "sqllint", Doc: "check statements against the grammar of MySQL", Run: run}

func main() { unitchecker.Main(analyzer) }

// run reports the problems of the statements of a package.
func run(pass *analysis.Pass) (any, error) {
	statements := 0
	for _, file := range pass.Files {
		name := filepath.Base(pass.Fset.Position(file.Pos()).Filename)
		if strings.HasSuffix(name, "_test.go") || name == "sqlite.go" {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			query := queryOf(n, pass)
			if query == nil || isQuery(query, pass.TypesInfo) || queryOf(query, pass) != nil {
				return true // the statement is the argument of another call
			}
			statements++
			value := pass.TypesInfo.Types[query].Value
			if value == nil {
				pass.ReportRangef(query, "the statement is not a constant")
				return true
			}
			for _, problem := range check(constant.StringVal(value)) {
				pass.ReportRangef(query, "%s", problem)
			}
			return true
		})
	}
	if statements == 0 {
		return nil, errors.New("the package has no statements")
	}
	return nil, nil
}

// queryOf returns the argument for the parameter query if the node is a call of a function of the package that has
// one.
func queryOf(n ast.Node, pass *analysis.Pass) ast.Expr {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return nil
	}
	called, ok := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
	if !ok || called.Pkg() != pass.Pkg {
		return nil
	}
	parameters := called.Signature().Params()
	for i := range min(parameters.Len(), len(call.Args)) {
		if parameters.At(i).Name() == "query" {
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
		return append(problems, "MariaDB has no WITH before UPDATE and DELETE")
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
