package schema

import (
	"bytes"
	"fmt"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
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
	if err := podtemplate.WriteCUE(&b); err != nil {
		return nil, err
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}
