package journal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// wire lists the structs of cloud/server that a client reads or writes, with Pulumi's struct. A variable within a
// function has the name of the function before it. Then follow fields that Pulumi's struct lacks: those that begin with
// cmwa, and those that only the description of Pulumi's service has.
var wire = []struct {
	ours    string
	pulumis any
	others  string
}{
	{"createStack.body", apitype.CreateStackRequest{}, ""},
	{"stackView", apitype.Stack{}, ""},
	{"operationView", apitype.OperationStatus{}, ""},
	{"stackSummary", apitype.StackSummary{}, ""},
	{"stackList", apitype.ListStacksResponse{}, ""},
	{"renameStack.body", apitype.StackRenameRequest{}, ""},
	{"capability", apitype.APICapabilityConfig{}, ""},
	{"encryptValue.body", apitype.EncryptValueRequest{}, ""},
	{"encryptValues.body", apitype.BatchEncryptRequest{}, ""},
	{"decryptValue.body", apitype.DecryptValueRequest{}, ""},
	{"decryptValues.body", apitype.BatchDecryptRequest{}, ""},
	{"createUpdate.body", apitype.UpdateProgramRequest{}, ""},
	{"startUpdate.body", apitype.StartUpdateRequest{}, ""},
	{"renewUpdate.body", apitype.RenewUpdateLeaseRequest{}, ""},
	{"completeUpdate.body", apitype.CompleteUpdateRequest{}, ""},
	{"updateInfo", apitype.UpdateInfo{}, ""},
	{"saveEvents.body", apitype.EngineEventBatch{}, ""},
	{"eventsView", apitype.GetUpdateEventsResponse{}, ""},
	{"request", apitype.CreateDeploymentRequest{}, "cmwaSteps cmwaTimeout"},
	{"settings", apitype.DeploymentSettings{}, ""},
	{"executorContext", apitype.ExecutorContext{}, ""},
	{"sourceContext", apitype.SourceContext{}, ""},
	{"gitSource", apitype.SourceContextGit{}, "tag"},
	{"gitAuth", apitype.GitAuthConfig{}, ""},
	{"operationContext", apitype.OperationContext{}, ""},
	{"operationOptions", apitype.OperationContextOptions{}, ""},
	{"deploymentView", apitype.GetDeploymentResponse{}, "cmwaAgent cmwaStatus"},
	{"jobView", apitype.DeploymentJob{}, ""},
	{"stepView", apitype.DeploymentStepRun{}, "cmwaStatus"},
	{"poolName", apitype.ListDeploymentSnapshotAgentPool{}, ""},
	{"jobUpdateView", apitype.DeploymentNestedUpdate{}, ""},
	{"lineView", apitype.DeploymentLogLine{}, ""},
	{"logPage", apitype.DeploymentLogs{}, "nextOffset"},
}

// TestWire fails if a field of a struct of the service is no field of Pulumi's struct.
func TestWire(t *testing.T) {
	structs := structsOf(t, "../../cloud/server")
	for _, test := range wire {
		ours := structs[test.ours]
		if ours == nil {
			t.Errorf("cloud/server has no struct %s", test.ours)
			continue
		}
		for _, name := range missing(ours, reflect.TypeOf(test.pulumis)) {
			if !slices.Contains(strings.Fields(test.others), name) {
				t.Errorf("%s has the field %s, but %T has not", test.ours, name, test.pulumis)
			}
		}
	}
}

// missing returns the fields of a struct of the service, and of structs within it, that Pulumi's struct lacks.
func missing(ours *ast.StructType, pulumis reflect.Type) (names []string) {
	for pulumis.Kind() == reflect.Pointer || pulumis.Kind() == reflect.Slice {
		pulumis = pulumis.Elem()
	}
	types := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(pulumis) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		types[name] = field.Type
	}
	for _, field := range ours.Fields.List {
		if field.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(field.Tag.Value)
		if err != nil {
			panic(err) // the parser has read it
		}
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if types[name] == nil {
			names = append(names, name)
			continue
		}
		inner := field.Type
		if pointer, ok := inner.(*ast.StarExpr); ok {
			inner = pointer.X
		}
		if inner, ok := inner.(*ast.StructType); ok {
			names = append(names, missing(inner, types[name])...)
		}
	}
	return names
}

// structsOf returns the structs of the files in a directory, by the names that wire uses.
func structsOf(t *testing.T, directory string) map[string]*ast.StructType {
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	add := func(name string, expression ast.Expr) {
		if structure, ok := expression.(*ast.StructType); ok {
			structs[name] = structure
		}
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			prefix := ""
			if function, ok := declaration.(*ast.FuncDecl); ok {
				prefix = function.Name.Name + "."
			}
			ast.Inspect(declaration, func(node ast.Node) bool {
				switch node := node.(type) {
				case *ast.TypeSpec:
					add(prefix+node.Name.Name, node.Type)
				case *ast.ValueSpec:
					add(prefix+node.Names[0].Name, node.Type)
				}
				return true
			})
		}
	}
	return structs
}
