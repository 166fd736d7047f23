package schema

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
)

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
	for _, name := range slices.Sorted(maps.Keys(x.pod)) {
		x.writePodType(&b, name)
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}

// steeringCUE is the same in CUE.
const steeringCUE = `"$patch"?: "replace" | "delete"
	"$retainKeys"?: [...string]
	[=~"^[$](setElementOrder|deleteFromPrimitiveList)/"]: [...]
`

// writePodType writes one definition as CUE.
func (x *export) writePodType(b *bytes.Buffer, name string) {
	t := x.pod[name]
	if len(t.fields) == 0 {
		fmt.Fprintf(b, "%s: %s\n\n", name, podExpression(&t.leaf))
		return
	}
	fmt.Fprintf(b, "%s: {\n\t%s", name, steeringCUE)
	for _, key := range slices.Sorted(maps.Keys(t.fields)) {
		fmt.Fprintf(b, "\t%s?: %s\n", key, orNull(t.fields[key]))
	}
	b.WriteString("}\n\n")
}

func orNull(f *podField) string {
	if f.kind == podOpen {
		return "_"
	}
	return "null | " + podExpression(f)
}

func podExpression(f *podField) string {
	switch f.kind {
	case podOpen:
		return "_"
	case podMapping:
		return f.ref
	case podList:
		return "[..." + podExpression(f.entry) + "]"
	case podMap:
		keys := `=~"^[^$]|^$"`
		if f.keys != "" {
			keys = f.keys
		}
		return "{\n\t[" + keys + "]: " + orNull(f.entry) + "\n\t" + steeringCUE + "}"
	default:
		return "(" + strings.Join(f.from, ") & (") + ")"
	}
}
