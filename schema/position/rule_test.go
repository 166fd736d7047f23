package position_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema/position"
)

// TestRules checks that every declared rule has a description.
func TestRules(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[position.Rule]bool{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Rule" && len(spec.Values) == 1 {
				text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				declared[position.Rule(text)] = true
			}
			return true
		})
	}

	described := map[position.Rule]bool{}
	for _, info := range position.Rules() {
		if described[info.Rule] {
			t.Errorf("%s is described twice", info.Rule)
		}
		described[info.Rule] = true
		if info.Description == "" || strings.HasSuffix(info.Description, ".") ||
			!unicode.IsUpper(rune(info.Description[0])) {
			t.Errorf("%s: %q must begin with a capital letter, and must not end with a full stop",
				info.Rule, info.Description)
		}
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(string(info.Rule)) {
			t.Errorf("the name %s must consist of lowercase letters and dashes", info.Rule)
		}
	}
	if len(declared) < 15 {
		t.Fatalf("got %d rules, want at least 15", len(declared))
	}
	if diff := cmp.Diff(declared, described); diff != "" {
		t.Errorf("the declared rules (-) and the described rules (+) differ:\n%s", diff)
	}
}
