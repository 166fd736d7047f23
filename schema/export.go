package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// SchemaID names the JSON Schema of a configuration file. It is a name: nothing
// needs to be fetched from there.
const SchemaID = "https://github.com/cmwa-project/cmwa/schema/pulumi-workflow-agent.json"

// JSONSchema returns the schema of a configuration file as JSON Schema, draft
// 2020-12, for editors and for checks in other languages. It refuses what [Load]
// refuses, as far as one value or one mapping can be judged alone: YAML's own
// rules, rules across keys, files that the configuration names and the bounds of
// durations are not in it.
//
// It is translated from the syntax of the CUE files and not exported by CUE's own
// encoder, which drops bounds and defaults, refuses open mappings, makes
// alternatives of one and the same number type, and calls its definitions by
// names that editors cannot follow. The translator knows the part of CUE in which
// the files are written, and fails on anything else rather than be silent.
func JSONSchema() ([]byte, error) {
	x, err := newExport()
	if err != nil {
		return nil, err
	}
	config, err := x.mapping("#Config", "")
	if err != nil {
		return nil, err
	}
	definitions, err := x.definitions()
	if err != nil {
		return nil, err
	}
	root := ordered{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", SchemaID},
		{"title", FileName},
		{"description", "Configuration of a workflow agent. An empty file is one, too: everything can come from variables."},
	}
	root = append(append(root, nullable(config)...), member{"$defs", definitions})
	text, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
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
	for _, name := range slices.Sorted(maps.Keys(x.pod)) {
		x.writePodType(&b, name)
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("write the schema: %w", err)
	}
	return text, nil
}

// export is one translation.
type export struct {
	files  []*ast.File           // schema.cue and defaults.cue
	named  map[string]*ast.Field // their definitions
	fields map[string]Field      // by key
	pod    podTypes
	wanted map[string]bool // definitions that something refers to
}

func newExport() (*export, error) {
	x := &export{named: map[string]*ast.Field{}, fields: map[string]Field{}, wanted: map[string]bool{}}
	for _, source := range []struct{ name, text string }{{"schema.cue", schemaText}, {"defaults.cue", defaultsText}} {
		file, err := parser.ParseFile(source.name, source.text, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("read the schema: %w", err)
		}
		x.files = append(x.files, file)
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
	if x.pod, err = readPodTypes(); err != nil {
		return nil, err
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
		field.Value = ast.NewIdent(podDefinition)
	case hasAttribute(field, "env") && labelOf(field) == "labels":
		list, ok := field.Value.(*ast.ListLit)
		if !ok || len(list.Elts) == 0 {
			return errors.New("labels is no list")
		}
		if entries, ok := list.Elts[0].(*ast.Ellipsis); ok {
			entries.Type = ast.NewBinExpr(token.AND, entries.Type, &ast.UnaryExpr{Op: token.NMAT, X: ast.NewString("^cmwa[.]")})
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

// podDefinition is the type of a pod template.
const podDefinition = "#Pod"

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

// ordered is a JSON object that keeps its order: a person reads it, too.
type ordered []member

type member struct {
	key   string
	value any
}

// MarshalJSON writes the members in their order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encoder.Encode(m.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encoder.Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o ordered) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// mapping translates a definition whose keys are described by fields. Those of a
// pool alone stand under the key that holds the pools.
func (x *export) mapping(name, prefix string) (ordered, error) {
	definition := x.named[name]
	if definition == nil {
		return nil, fmt.Errorf("there is no definition %s", name)
	}
	return x.structure(definition.Value, prefix)
}

func (x *export) structure(expr ast.Expr, prefix string) (ordered, error) {
	var kind any = "object"
	if choice, ok := expr.(*ast.BinaryExpr); ok && choice.Op == token.OR {
		kind, expr = []string{"object", "null"}, choice.Y
	}
	body, ok := expr.(*ast.StructLit)
	if !ok {
		return nil, fmt.Errorf("%s is no mapping of keys", prefix)
	}
	properties, required, err := x.properties(body, prefix)
	if err != nil {
		return nil, err
	}
	o := ordered{{"type", kind}}
	if len(required) > 0 {
		o = append(o, member{"required", required})
	}
	return append(o, member{"properties", properties}, member{"additionalProperties", false}), nil
}

func (x *export) properties(body *ast.StructLit, prefix string) (properties ordered, required []string, err error) {
	for _, element := range body.Elts {
		switch e := element.(type) {
		case *ast.EmbedDecl:
			name, ok := e.Expr.(*ast.Ident)
			if !ok || x.named[name.Name] == nil {
				return nil, nil, fmt.Errorf("%s embeds what is no definition", prefix)
			}
			inner, ok := x.named[name.Name].Value.(*ast.StructLit)
			if !ok {
				return nil, nil, fmt.Errorf("%s embeds %s, which is no mapping", prefix, name.Name)
			}
			more, needed, err := x.properties(inner, prefix)
			if err != nil {
				return nil, nil, err
			}
			properties, required = append(properties, more...), append(required, needed...)
		case *ast.Field:
			key := labelOf(e)
			f, ok := x.fields[prefix+key]
			if !ok {
				f, ok = x.fields[strings.TrimPrefix(prefix+key, poolsPrefix)] // a pool has it in common with the top level
			}
			if !ok {
				return nil, nil, fmt.Errorf("%s%s is in no list of fields", prefix, key)
			}
			value, err := x.key(f, e.Value, prefix+key)
			if err != nil {
				return nil, nil, err
			}
			properties = append(properties, member{key, value})
			if f.Required {
				required = append(required, key)
			}
		case *ast.CommentGroup:
		default:
			return nil, nil, fmt.Errorf("%s holds what has no translation", prefix)
		}
	}
	return properties, required, nil
}

// poolsPrefix is that of the keys that only a pool has.
const poolsPrefix = "pools."

// key translates one key with all that is known about it. In a pool it has no
// default but what the top level says, and no variable.
func (x *export) key(f Field, expr ast.Expr, path string) (ordered, error) {
	inPool := strings.HasPrefix(path, poolsPrefix)
	o := ordered{{"title", path}, {"description", x.description(f, inPool)}}
	if f.Old != "" {
		current, definition := x.fields[f.Old], x.declaration(f.Old)
		if definition == nil {
			return nil, fmt.Errorf("%s is the old name of an unknown key", f.Key)
		}
		value, err := x.value(current, definition.Value, f.Old)
		if err != nil {
			return nil, err
		}
		return append(append(o, member{"deprecated", true}), value...), nil
	}
	if f.Unused != "" || f.Ignored {
		return append(o, member{"deprecated", true}), nil
	}
	value, err := x.value(f, expr, path)
	if err != nil {
		return nil, err
	}
	o = append(o, value...)
	if f.Default != "" && !inPool {
		o = append(o, member{"default", json.RawMessage(f.Default)})
	}
	return o, nil
}

// declaration finds a key of the top level.
func (x *export) declaration(key string) *ast.Field {
	for _, name := range []string{"#Settings", "#Config"} {
		body, ok := x.named[name].Value.(*ast.StructLit)
		if !ok {
			continue
		}
		for _, element := range body.Elts {
			if field, ok := element.(*ast.Field); ok && labelOf(field) == key {
				return field
			}
		}
	}
	return nil
}

// description is the documentation of a key with what an editor should show
// beside it.
func (x *export) description(f Field, inPool bool) string {
	text := f.Doc
	if f.Old != "" {
		text = "Old name of " + f.Old + ". " + text
	}
	if f.Unused != "" {
		text += " It has no effect: " + f.Unused + "."
	}
	if f.Kind == KindDuration {
		text += fmt.Sprintf(" From %s to %s.", short(f.Shortest), short(f.Longest))
	}
	if f.Variable != "" && !inPool {
		text += " Variable: " + f.Variable + "."
	}
	return text
}

// value translates the constraint of a key.
func (x *export) value(f Field, expr ast.Expr, path string) (ordered, error) {
	switch f.Kind {
	case KindMapping:
		return x.structure(expr, path+".")
	case KindMappings:
		x.wanted["#Pool"] = true
		return ordered{{"type", "array"}, {"minItems", 1}, {"items", ordered{{"$ref", "#/$defs/Pool"}}}}, nil
	}
	o, err := x.of(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

// durationPattern is Go's notation, without a sign: no key takes less than zero.
const durationPattern = `^[+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

// of translates an expression.
func (x *export) of(expr ast.Expr) (ordered, error) {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return x.of(e.X)
	case *ast.Ident:
		return x.name(e.Name)
	case *ast.SelectorExpr:
		if text, _ := format.Node(e); string(text) == "time.Duration" {
			return ordered{{"type", "string"}, {"pattern", durationPattern}}, nil
		}
	case *ast.CallExpr:
		return x.call(e)
	case *ast.BasicLit:
		return literalOf(e)
	case *ast.UnaryExpr:
		return x.bound(e)
	case *ast.BinaryExpr:
		switch e.Op {
		case token.OR:
			return x.either(e)
		case token.AND:
			return x.both(e.X, e.Y)
		}
	case *ast.ListLit:
		return x.list(e)
	case *ast.StructLit:
		return x.open(e)
	}
	return nil, fmt.Errorf("%T has no translation", expr)
}

func (x *export) name(name string) (ordered, error) {
	if strings.HasPrefix(name, "#") {
		x.wanted[name] = true
		return ordered{{"$ref", "#/$defs/" + name[1:]}}, nil
	}
	switch name {
	case "_":
		return ordered{}, nil
	case "string", "number":
		return ordered{{"type", name}}, nil
	case "bool":
		return ordered{{"type", "boolean"}}, nil
	case "int", "int64": // JSON's readers disagree about numbers near the bounds of int64
		return ordered{{"type", "integer"}}, nil
	case "int32":
		return ordered{{"type", "integer"}, {"minimum", -1 << 31}, {"maximum", 1<<31 - 1}}, nil
	}
	return nil, fmt.Errorf("%s has no translation", name)
}

func (x *export) call(e *ast.CallExpr) (ordered, error) {
	text, err := format.Node(e.Fun)
	if err == nil && string(text) == "strings.MaxRunes" && len(e.Args) == 1 {
		if number, ok := e.Args[0].(*ast.BasicLit); ok {
			return ordered{{"type", "string"}, {"maxLength", json.Number(number.Value)}}, nil
		}
	}
	return nil, fmt.Errorf("the call of %s has no translation", text)
}

func literalOf(e *ast.BasicLit) (ordered, error) {
	switch e.Kind {
	case token.STRING:
		word, err := literal.Unquote(e.Value)
		if err != nil {
			return nil, err
		}
		return ordered{{"type", "string"}, {"enum", []any{word}}}, nil
	case token.NULL:
		return ordered{{"type", "null"}}, nil
	}
	return nil, fmt.Errorf("the literal %s has no translation", e.Value)
}

func (x *export) bound(e *ast.UnaryExpr) (ordered, error) {
	l, ok := e.X.(*ast.BasicLit)
	if !ok {
		return nil, fmt.Errorf("%s before what is no literal has no translation", e.Op)
	}
	switch e.Op {
	case token.MAT, token.NMAT:
		pattern, err := literal.Unquote(l.Value)
		if err != nil {
			return nil, err
		}
		if e.Op == token.NMAT {
			return ordered{{"type", "string"}, {"not", ordered{{"pattern", pattern}}}}, nil
		}
		return ordered{{"type", "string"}, {"pattern", pattern}}, nil
	}
	keyword := map[token.Token]string{token.GEQ: "minimum", token.LEQ: "maximum", token.GTR: "exclusiveMinimum", token.LSS: "exclusiveMaximum"}[e.Op]
	if _, err := strconv.ParseFloat(l.Value, 64); err != nil || keyword == "" {
		return nil, fmt.Errorf("%s has no translation", e.Op)
	}
	return ordered{{"type", "number"}, {keyword, json.Number(l.Value)}}, nil
}

// either translates alternatives; words among them make one enumeration.
func (x *export) either(e *ast.BinaryExpr) (ordered, error) {
	var words, others []any
	for _, expr := range alternatives(e) {
		o, err := x.of(expr)
		if err != nil {
			return nil, err
		}
		if enum, ok := o.get("enum").([]any); ok {
			words = append(words, enum...)
			continue
		}
		others = append(others, o)
	}
	enumeration := ordered{{"type", "string"}, {"enum", words}}
	switch {
	case len(others) == 0:
		return enumeration, nil
	case len(words) > 0:
		others = append([]any{enumeration}, others...)
	}
	return ordered{{"anyOf", others}}, nil
}

func alternatives(expr ast.Expr) []ast.Expr {
	switch e := expr.(type) {
	case *ast.ParenExpr:
		return alternatives(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.OR {
			return append(alternatives(e.X), alternatives(e.Y)...)
		}
	}
	return []ast.Expr{expr}
}

// both translates what must hold at once.
func (x *export) both(exprs ...ast.Expr) (ordered, error) {
	var all ordered
	var apart []any
	for _, expr := range exprs {
		o, err := x.of(expr)
		if err != nil {
			return nil, err
		}
		if merged, ok := merge(all, o); ok {
			all = merged
		} else {
			apart = append(apart, o)
		}
	}
	if len(apart) > 0 {
		more, _ := all.get("allOf").([]any)
		all = append(slices.DeleteFunc(slices.Clone(all), func(m member) bool { return m.key == "allOf" }), member{"allOf", append(slices.Clone(more), apart...)})
	}
	return all, nil
}

// merge makes one object of two that must hold at once, if no key of theirs is in
// the way of another. A whole number is a number.
func merge(a, b ordered) (ordered, bool) {
	merged := slices.Clone(a)
	for _, m := range b {
		i := slices.IndexFunc(merged, func(other member) bool { return other.key == m.key })
		switch {
		case i < 0:
			merged = append(merged, m)
		case m.key == "type" && merged[i].value == m.value:
		case m.key == "type" && merged[i].value == "integer" && m.value == "number":
		case m.key == "type" && merged[i].value == "number" && m.value == "integer":
			merged[i] = m
		case m.key == "minimum" || m.key == "maximum": // the later one is the narrower: CUE writes kinds first
			merged[i] = m
		default:
			return a, false
		}
	}
	return merged, true
}

func (x *export) list(e *ast.ListLit) (ordered, error) {
	o := ordered{{"type", "array"}}
	if least := len(e.Elts) - 1; least > 0 {
		o = append(o, member{"minItems", least})
	}
	rest, ok := e.Elts[len(e.Elts)-1].(*ast.Ellipsis)
	if !ok {
		return nil, errors.New("a closed list has no translation")
	}
	if rest.Type == nil {
		return o, nil
	}
	items, err := x.of(rest.Type)
	return append(o, member{"items", items}), err
}

func (x *export) open(e *ast.StructLit) (ordered, error) {
	if len(e.Elts) == 1 {
		if field, ok := e.Elts[0].(*ast.Field); ok {
			if _, ok := field.Label.(*ast.ListLit); ok {
				values, err := x.of(field.Value)
				return ordered{{"type", "object"}, {"additionalProperties", values}}, err
			}
		}
	}
	return nil, errors.New("a mapping without a name has no translation")
}

// definitions translates everything that was referred to, and what that refers
// to.
func (x *export) definitions() (ordered, error) {
	done := map[string]ordered{}
	for {
		before := len(done)
		for _, name := range slices.Sorted(maps.Keys(x.wanted)) {
			if _, ok := done[name]; ok {
				continue
			}
			o, err := x.definition(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			done[name] = o
		}
		if len(done) == before {
			break
		}
	}
	var all ordered
	for _, name := range slices.Sorted(maps.Keys(done)) {
		all = append(all, member{name[1:], done[name]})
	}
	return all, nil
}

func (x *export) definition(name string) (ordered, error) {
	if name == "#Pool" {
		return x.mapping(name, poolsPrefix)
	}
	if definition := x.named[name]; definition != nil {
		return x.of(definition.Value)
	}
	t := x.pod[name]
	switch {
	case t == nil:
		return nil, errors.New("there is no such definition")
	case len(t.fields) == 0:
		return x.podValue(&t.leaf)
	default:
		o, err := x.podMapping(name, t)
		if name == podDefinition {
			o = append(o, member{"allOf", []any{json.RawMessage(ofTheAgent)}})
		}
		return o, err
	}
}

// ofTheAgent is what a template must leave to the agent, and what a container
// beside the agent's needs, as far as JSON Schema can say it.
const ofTheAgent = `{
	"$comment": "What belongs to the agent.",
	"properties": {
		"apiVersion": {"const": "v1"},
		"kind": {"const": "Pod"},
		"status": {"maxProperties": 0},
		"$patch": false,
		"$retainKeys": false,
		"metadata": {
			"type": "object",
			"properties": {
				"name": false, "generateName": false, "namespace": false,
				"uid": {"type": "null"}, "resourceVersion": {"type": "null"}, "generation": {"type": "null"}, "creationTimestamp": {"type": "null"},
				"deletionTimestamp": {"type": "null"}, "deletionGracePeriodSeconds": {"type": "null"}, "selfLink": {"type": "null"}, "managedFields": {"type": "null"},
				"labels": {
					"type": "object",
					"properties": {"app.kubernetes.io/component": false, "app.kubernetes.io/name": false, "$patch": false, "$retainKeys": false},
					"patternProperties": {"^cmwa": false}
				},
				"annotations": {
					"type": "object",
					"properties": {"$patch": false, "$retainKeys": false},
					"patternProperties": {"^cmwa": false}
				},
				"$patch": false,
				"$retainKeys": false
			}
		},
		"spec": {
			"type": "object",
			"properties": {
				"restartPolicy": {"const": "Never"},
				"ephemeralContainers": {"maxItems": 0},
				"$patch": false,
				"$retainKeys": false,
				"containers": {
					"type": "array",
					"items": {
						"if": {"properties": {"name": {"const": "pulumi-workflow"}}},
						"then": {"properties": {"command": false, "args": false, "$patch": false, "$retainKeys": false, "restartPolicy": {"const": null}, "image": {"type": "string", "minLength": 1}}},
						"else": {"properties": {"name": {"not": {"pattern": "^pulumi-workflow-"}}}, "anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]}
					}
				},
				"initContainers": {
					"type": "array",
					"items": {
						"properties": {"name": {"not": {"pattern": "^pulumi-workflow(-|$)"}}},
						"anyOf": [{"required": ["image"]}, {"required": ["$patch"]}]
					}
				},
				"volumes": {
					"type": "array",
					"items": {"properties": {"name": {"not": {"pattern": "^pulumi-workflow(-|$)"}}}}
				}
			}
		}
	}
}`

// steering is what the keys may be that say how a mapping is merged, by pattern.
func steering() []member {
	return []member{
		{"^[$]patch$", ordered{{"enum", []any{"replace", "delete"}}}},
		{"^[$]retainKeys$", ordered{{"type", "array"}, {"items", ordered{{"type", "string"}}}}},
		{"^[$](setElementOrder|deleteFromPrimitiveList)/", ordered{{"type", "array"}}},
	}
}

// steeringCUE is the same in CUE.
const steeringCUE = `"$patch"?: "replace" | "delete"
	"$retainKeys"?: [...string]
	[=~"^[$](setElementOrder|deleteFromPrimitiveList)/"]: [...]
`

// podMapping translates a mapping of a Pod. It is part of a patch, and so nothing
// is required but what a new entry of a list must have.
func (x *export) podMapping(name string, t *podType) (ordered, error) {
	var properties ordered
	var needed []string
	for _, key := range slices.Sorted(maps.Keys(t.fields)) {
		o, err := x.podValue(t.fields[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		properties = append(properties, member{key, nullable(o)})
		if t.fields[key].need {
			needed = append(needed, key)
		}
	}
	o := ordered{{"type", "object"}, {"properties", properties}, {"patternProperties", ordered(steering())}, {"additionalProperties", false}}
	if !slices.Contains(laidOver(), name) && len(needed) > 0 {
		o = append(o, member{"anyOf", []any{ordered{{"required", []string{"$patch"}}}, ordered{{"required", needed}}}})
	}
	return o, nil
}

// laidOver returns the mappings that are there before the template.
func laidOver() []string { return []string{podDefinition, "#ObjectMeta", "#PodSpec"} }

// podValue translates one value of a Pod: every declaration of it must hold.
func (x *export) podValue(f *podField) (ordered, error) {
	switch f.kind {
	case podOpen:
		return ordered{}, nil
	case podMapping:
		return x.name(f.ref)
	case podList:
		items, err := x.podValue(f.entry)
		return ordered{{"type", "array"}, {"items", items}}, err
	case podMap:
		values, err := x.podValue(f.entry)
		o := ordered{{"type", "object"}, {"patternProperties", append(ordered(steering()), member{"^[^$]|^$", nullable(values)})}, {"additionalProperties", false}}
		if err == nil && f.keys != "" {
			var key ordered
			if key, err = x.name(f.keys); err == nil {
				o = append(o, member{"propertyNames", ordered{{"anyOf", []any{ordered{{"pattern", "^[$]"}}, key}}}})
			}
		}
		return o, err
	}
	var exprs []ast.Expr
	for _, text := range f.from {
		expr, err := parser.ParseExpr("", text)
		if err != nil {
			return nil, err
		}
		exprs = append(exprs, expr)
	}
	return x.both(exprs...)
}

// nullable lets null stand for the value: a null takes a key away.
func nullable(o ordered) ordered {
	if len(o) == 0 {
		return o
	}
	kind, plain := o.get("type").(string)
	for _, m := range o {
		if m.key == "$ref" || m.key == "anyOf" || m.key == "allOf" || m.key == "enum" || m.key == "not" {
			plain = false
		}
	}
	if !plain {
		return ordered{{"anyOf", []any{o, ordered{{"type", "null"}}}}}
	}
	either := slices.Clone(o)
	either[slices.IndexFunc(o, func(m member) bool { return m.key == "type" })] = member{"type", []string{kind, "null"}}
	return either
}

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
