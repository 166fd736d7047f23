package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

// vet returns the problems of one file as cmwa vet classifies them.
func vet(content string) position.Problems {
	_, problems := schema.Load(sourceWithFiles(content))
	return schema.Strict(problems)
}

// instance decodes YAML without package position, as other programs do.
func instance(content string) (any, error) {
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(content), &node); err != nil {
		return nil, err
	}
	if len(node.Content) == 0 {
		return nil, nil
	}
	return plain(node.Content[0], 0)
}

func plain(n *yaml.Node, depth int) (any, error) {
	if depth++; depth > 100 {
		return nil, errors.New("too deep, or without an end")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return plain(n.Alias, depth)
	case yaml.SequenceNode:
		list := []any{}
		for _, entry := range n.Content {
			v, err := plain(entry, depth)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		mapping := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			v, err := plain(n.Content[i+1], depth)
			if err != nil {
				return nil, err
			}
			if inner, ok := v.(map[string]any); ok && key.ShortTag() == "!!merge" {
				for k, v := range inner {
					if _, ok := mapping[k]; !ok {
						mapping[k] = v
					}
				}
				continue
			}
			if _, ok := mapping[key.Value]; !ok {
				mapping[key.Value] = v
			}
		}
		return mapping, nil
	}
	if tag := n.ShortTag(); tag == "!!timestamp" || tag == "!!str" {
		return n.Value, nil
	}
	var v any
	err := n.Decode(&v)
	return v, err
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := schema.JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(schema.SchemaID, document); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile(schema.SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// refusedPaths returns the paths of the values that the JSON Schema rejects, sorted. For a
// value that matches no alternative it returns the path of the alternatives, and for
// everything within a Pod template the path of the template.
func refusedPaths(err error) []string {
	var failure *jsonschema.ValidationError
	if !errors.As(err, &failure) {
		return nil
	}
	seen := map[string]bool{}
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		at := e.InstanceLocation
		switch k := e.ErrorKind.(type) {
		case *kind.AdditionalProperties:
			for _, name := range k.Properties {
				seen[place(append(slices.Clone(at), name))] = true
			}
			return
		case *kind.Required:
			for _, name := range k.Missing {
				seen[place(append(slices.Clone(at), name))] = true
			}
			return
		case *kind.AnyOf:
			seen[place(at)] = true
			return
		}
		if len(e.Causes) == 0 {
			seen[place(at)] = true
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
	}
	walk(failure)
	return slices.Sorted(maps.Keys(seen))
}

// place returns a path without its part within a Pod template, because vet and the JSON
// Schema may report different paths there.
func place(steps []string) string {
	if i := slices.IndexFunc(steps, func(step string) bool { return strings.HasPrefix(step, "pod_template") }); i >= 0 {
		steps = steps[:i+1]
	}
	return strings.Join(steps, ".")
}

// beyond reports whether a schema of single values cannot detect the problem of a value.
func beyond(p position.Problem, f schema.Field, v any) bool {
	switch p.Rule {
	case position.RuleSyntax, position.RuleSize, position.RuleDuplicateKey:
		return true // the problem is in the text, not in the values that a YAML parser returns
	case position.RuleMissingToken, position.RuleCredentials, position.RuleTimes, position.RulePools, position.RuleFile:
		return true // the rules are about several keys, about several pools, and about another file
	case position.RuleProtectedField, position.RulePodTemplate:
		return true // the rules are about the fields that the agent sets, and about several parts of a Pod
	case position.RuleValue:
		text, _ := v.(string)
		_, err := time.ParseDuration(text)
		number, isFloat := v.(float64)
		switch {
		case f.Kind == schema.KindDuration && (err == nil || len(text) > 12):
			return true // a pattern cannot compare durations
		case f.Kind == schema.KindQuantity && text != "", f.Key == "docker.memory", f.Key == "docker.storage_limit",
			f.Key == "docker.cpus":
			return true // a pattern cannot compare numbers
		case (f.Kind == schema.KindInt || f.Seconds) && isFloat && number == math.Trunc(number):
			return true // 4.0 is a whole number to JSON
		case strings.HasPrefix(f.Key, "kubernetes.") && strings.Contains(p.Message, " than "):
			return true // a pattern can neither compare two amounts, nor an amount with 0
		case f.Key == "service_url" && strings.HasPrefix(text, "http"):
			return true // a pattern cannot check the host and the port of a URL
		}
	}
	return false
}

// rejectedAlike checks that vet and the JSON Schema reject the same values of a file. It returns
// their number.
func rejectedAlike(t *testing.T, accepts *jsonschema.Schema, name, content string, v any) int {
	t.Helper()
	byKey := byKey()
	want, perhaps := map[string]bool{}, map[string]bool{}
	for _, p := range vet(content).Errors() {
		steps := strings.Split(p.Path, ".")
		if beyond(p, byKey[keyOf(p.Path)], within(v, steps)) {
			perhaps[place(steps)] = true
		} else {
			want[place(steps)] = true
		}
	}
	got := refusedPaths(accepts.Validate(v))
	for i, path := range got {
		if masked := regexp.MustCompile(`[^.]*$`).ReplaceAllString(path, "(a key)"); want[masked] && !want[path] {
			got[i] = masked // vet reports "(a key)" for a key that may be a secret
		}
	}
	got = slices.DeleteFunc(got, func(path string) bool { return perhaps[path] && !want[path] })
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: vet (-) and the JSON Schema (+) differ:\n%s", name, diff)
	}
	return len(got)
}

// unreadable reports whether a file cannot be parsed into values.
func unreadable(problems position.Problems) bool {
	return slices.ContainsFunc(problems, func(p position.Problem) bool {
		return p.Rule == position.RuleSyntax || p.Rule == position.RuleSize
	})
}

// within returns the value at a path, or nil if there is none.
func within(v any, steps []string) any {
	for _, step := range steps {
		switch inner := v.(type) {
		case map[string]any:
			v = inner[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(inner) {
				return nil
			}
			v = inner[i]
		default:
			return nil
		}
	}
	return v
}

// keyOf returns a path without the pool that contains it.
func keyOf(path string) string {
	if steps := strings.SplitN(path, ".", 3); len(steps) == 3 && steps[0] == "pools" {
		return steps[2]
	}
	return path
}

func byKey() map[string]schema.Field {
	all := map[string]schema.Field{}
	for _, f := range schema.Fields() {
		all[f.Key] = f
	}
	return all
}

func TestJSONSchema(t *testing.T) {
	t.Run("conforms to its metaschema", func(t *testing.T) {
		compiled(t) // the compiler checks the schema against its metaschema
		text, _ := schema.JSONSchema()
		if strings.Contains(string(text), "%23") || strings.Contains(string(text), `"#/$defs/#`) {
			t.Error("a reference contains #, which editors cannot follow")
		}
	})

	// Editors use the regular expressions of JavaScript, so the patterns must use only what
	// these have in common with the regular expressions of Go.
	t.Run("has patterns that mean the same in other languages", func(t *testing.T) {
		text, err := schema.JSONSchema()
		if err != nil {
			t.Fatal(err)
		}
		patterns := regexp.MustCompile(`"pattern": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(text, -1)
		if len(patterns) < 50 {
			t.Fatalf("found %d patterns", len(patterns))
		}
		for _, found := range patterns {
			var pattern string
			if err := json.Unmarshal(found[1], &pattern); err != nil {
				t.Fatal(err)
			}
			peculiar := regexp.MustCompile(`\(\?|\\[^.sSx]|\\x[^0-9a-f]|[*+?}][+]|\[\[:|\$.*\^`)
			if own := peculiar.FindString(pattern); own != "" {
				t.Errorf("%s has %s, which differs between languages", pattern, own)
			}
		}
	})

	t.Run("accepts valid files", func(t *testing.T) {
		accepts := compiled(t)
		for _, file := range slices.Concat(corpus(t, 30, "testdata/good/*.yaml"), corpus(t, 2, "../examples/*.yaml")) {
			if problems := vet(file.content).Errors(); len(problems) > 0 && !strings.Contains(file.path, "examples") {
				t.Errorf("%s: vet rejects the file:\n%v", file.path, problems)
			}
			v, err := instance(file.content)
			if err != nil {
				t.Fatal(file.path, err)
			}
			if err := accepts.Validate(v); err != nil {
				t.Errorf("%s: %v", file.path, err)
			}
		}
	})

	t.Run("rejects invalid files at the same keys as vet", func(t *testing.T) {
		accepts := compiled(t)
		compared := 0
		for _, file := range corpus(t, 90, "testdata/bad/*.yaml") {
			if unreadable(vet(file.content).Errors()) {
				continue
			}
			v, err := instance(file.content)
			if err != nil {
				continue
			}
			compared++
			rejectedAlike(t, accepts, file.path, file.content, v)
		}
		if compared < 50 {
			t.Errorf("only %d files were compared", compared)
		}
	})

	t.Run("rejects unusual values at the same keys as vet", func(t *testing.T) {
		accepts := compiled(t)
		refused, accepted := 0, 0
		for _, odd := range oddValues {
			for _, inPool := range []bool{false, true} {
				content := everyKeyAt(odd, inPool)
				v, err := instance(content)
				if err != nil {
					t.Fatalf("%s: %v", odd, err)
				}
				rejected := rejectedAlike(t, accepts, odd, content, v)
				refused += rejected
				accepted += len(schema.Fields()) - rejected
			}
		}
		if refused < 3000 || accepted < 3000 {
			t.Errorf("%d values were rejected and %d accepted, want 3000 of each", refused, accepted)
		}
	})

	t.Run("has defaults and choices that Load accepts", func(t *testing.T) {
		accepts := compiled(t)
		for _, f := range schema.Fields() {
			if f.OnlyVariable || !current(f) || strings.HasPrefix(f.Key, "pools") {
				continue
			}
			var values []string
			if f.Default != "" {
				values = append(values, f.Default)
			}
			for _, choice := range f.Choices {
				if f.Kind == schema.KindList {
					choice = "[" + choice + "]"
				}
				values = append(values, choice)
			}
			for _, value := range values {
				v, err := instance(fileOf([]setting{{key: f.Key, file: value}}))
				if err := errors.Join(err, accepts.Validate(v)); err != nil {
					t.Errorf("%s: %v", f.Key, err)
				}
			}
		}
	})

	t.Run("has the facts of all fields", func(t *testing.T) {
		root := readJSONSchema(t, schema.JSONSchema)
		pool := root["$defs"].(jsonSchemaObject)["Pool"]
		find := func(from any, key string) jsonSchemaObject {
			found, _ := from.(jsonSchemaObject)
			for step := range strings.SplitSeq(key, ".") {
				properties, _ := found["properties"].(jsonSchemaObject)
				found, _ = properties[step].(jsonSchemaObject)
			}
			return found
		}
		for _, f := range schema.Fields() {
			if f.OnlyVariable {
				continue
			}
			in := find(root, f.Key)
			if own, ok := strings.CutPrefix(f.Key, "pools."); ok {
				in = find(pool, own)
			}
			if in == nil {
				t.Errorf("%s is missing", f.Key)
				continue
			}
			effect := ""
			if f.Reload != "" && current(f) && !strings.HasPrefix(f.Key, "pools") {
				effect = "A change takes effect " + f.Reload.Meaning() + " (" + f.Reload.String() + ")."
			}
			description, _ := in["description"].(string)
			if !strings.Contains(description, f.Doc) || !strings.Contains(description, effect) {
				t.Errorf("%s is described as %q, want %q and %q in it", f.Key, description, f.Doc, effect)
			}
			if deprecated, _ := in["deprecated"].(bool); deprecated == current(f) {
				t.Errorf("%s: deprecated is %t", f.Key, deprecated)
			}
			if _, ok := in["default"]; ok != (f.Default != "") {
				t.Errorf("%s: the schema has a default: %t, want %t", f.Key, ok, !ok)
			}
			if f.Min != nil && in["minimum"] != float64(*f.Min) || f.Max != nil && in["maximum"] != float64(*f.Max) {
				t.Errorf("%s: bounds %v to %v", f.Key, in["minimum"], in["maximum"])
			}
			inPool := find(pool, strings.TrimPrefix(f.Key, "pools."))
			if (inPool != nil) != f.Pool {
				t.Errorf("%s: the schema of a pool has the key: %t, want %t", f.Key, inPool != nil, f.Pool)
			}
			if _, ok := inPool["default"]; ok {
				t.Errorf("%s has a default in a pool, want none, because pools inherit from the top level", f.Key)
			}
		}
	})

	t.Run("is the same each time", func(t *testing.T) {
		first, err := schema.JSONSchema()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if again, err := schema.JSONSchema(); err != nil || !bytes.Equal(first, again) {
				t.Fatalf("the second schema differs from the first, %v", err)
			}
		}
	})

	t.Run("is tested with files that set every key", func(t *testing.T) {
		set := map[string]bool{}
		for _, file := range corpus(t, 30, "testdata/good/*.yaml") {
			v, err := instance(file.content)
			if err != nil {
				t.Fatal(file.path, err)
			}
			addKeys(set, "", v)
		}
		for _, f := range schema.Fields() {
			if !f.OnlyVariable && !set[f.Key] {
				t.Errorf("no file sets %s", f.Key)
			}
		}
	})
}

// oddValues are YAML values of all kinds, which are valid for some keys and invalid for
// others.
var oddValues = []string{
	`""`, `" "`, `a`, `a b`, `"a\tb"`, `a:b`, `a:/b`, `a:/b:ro`, `a=b`, `a=`, `=b`, `a,b`, `A_B`, `UPPER`,
	`ümlaut`, `"1"`, `"0"`, `"-1"`, `"0.5"`,
	`0`, `1`, `-1`, `2`, `65535`, `65536`, `1000`, `1001`, `1024`, `1025`, `31536000`, `31536001`, `99999999999`,
	`0.5`, `-0.5`, `1e3`, `0x10`,
	`true`, `false`, `yes`, `"true"`, `null`, `~`, `[]`, `[a]`, `["a:/b"]`, `[a=b]`, `["a:b"]`, `[""]`, `[1]`,
	`[null]`, `[[a]]`, `[a, a]`, `[a b]`, `{}`, `{a: b}`,
	`1m`, `1h30m`, `0s`, `-1m`, `+1m`, `1`, `1.5h`, `.5m`, `1d`, `1m `, `1m1`, `m`, `1ms`, `99999h`, `5 m`, `1µs`,
	`100ms`, `30s`,
	`docker`, `Docker`, `kubernetes`, `ecs`, `process`, `deployment`, `[deployment]`, `[deployment, x]`,
	`FARGATE`, `EC2`, `Always`, `IfNotPresent`, `debug`, `trace`, `text`, `json`,
	`512m`, `500m`, `4Gi`, `4GiB`, `1.5g`, `4`, `0m`, `4K`, `4k`, `4Ki`, `4Mi`, `1e3Mi`, `2000`, `"2000"`, `"1024"`,
	`https://a.example`, `https://a.example/`, `http://a:1/b`, `https://u@a.example`, `https://a.example?q`,
	`https://a.example#f`, `ftp://a`, `https://`, `/a`, `a/b`, `/`, `./a`,
	`1000:1000`, `root`, `"a:"`, `:a`, `-a`, `a-`, `a.b`, `a..b`, `a_b`, `2026-01-02`,
	strings.Repeat("a", 64), `[{name: a, token: b}]`, `[{name: A}]`,
}

// everyKeyAt returns a file in which every key has the same value. It has no Pod templates,
// which [podCorpus] returns.
func everyKeyAt(value string, inPool bool) string {
	var all []setting
	for _, f := range schema.Fields() {
		key, ofPool := strings.CutPrefix(f.Key, "pools.")
		switch {
		case f.OnlyVariable, !current(f), f.Kind == schema.KindMapping, f.Kind == schema.KindTree,
			inPool && !f.Pool, !inPool && ofPool, inPool && key == "token":
			continue
		}
		all = append(all, setting{key: key, file: value})
	}
	if inPool {
		return "pools:\n- token: pul-x\n" + indented(fileOf(all), 2)
	}
	return fileOf(all)
}

// addKeys adds the paths of all keys in a value to a set. Entries of lists have the path of
// their list.
func addKeys(set map[string]bool, at string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			path := strings.TrimPrefix(at+"."+key, ".")
			set[path] = true
			addKeys(set, path, inner)
		}
	case []any:
		for _, inner := range v {
			addKeys(set, at, inner)
		}
	}
}

// cueConfig compiles the exported CUE without other files, as cue vet does.
func cueConfig(t *testing.T) (*cue.Context, cue.Value) {
	t.Helper()
	text, err := schema.CUE()
	if err != nil {
		t.Fatal(err)
	}
	context := cuecontext.New()
	root := context.CompileBytes(text, cue.Filename("schema.cue"))
	config := root.LookupPath(cue.ParsePath("#Config"))
	if err := errors.Join(root.Err(), config.Err()); err != nil {
		t.Fatal(err)
	}
	return context, config
}

func TestCUE(t *testing.T) {
	t.Run("accepts what the JSON Schema accepts", func(t *testing.T) {
		accepts := compiled(t)
		context, config := cueConfig(t)
		results := map[bool]int{}
		all := slices.Concat(corpus(t, 90, "testdata/bad/*.yaml"), corpus(t, 30, "testdata/good/*.yaml"))
		for _, file := range all {
			if unreadable(vet(file.content)) {
				continue
			}
			v, err := instance(file.content)
			if err != nil || v == nil {
				continue
			}
			if strings.Contains(file.path, "duration") && strings.Contains(file.path, "/bad/") {
				continue // CUE parses durations; the JSON Schema only matches them against a pattern
			}
			byJSON := accepts.Validate(v) == nil
			byCUE := config.Unify(context.Encode(v)).Validate(cue.Concrete(true))
			if byJSON != (byCUE == nil) {
				t.Errorf("%s: the JSON Schema accepts the file: %t; CUE returns %v", file.path, byJSON, byCUE)
			}
			results[byJSON]++
		}
		if results[true] < 30 || results[false] < 40 {
			t.Errorf("accepted and rejected files: %v, want 30 accepted and 40 rejected ones or more", results)
		}
	})

	// Both schemas must accept every template that vet accepts, and reject every unknown key
	// and most other problems. They cannot detect problems across several parts of a Pod.
	t.Run("checks Pod templates as the JSON Schema does", func(t *testing.T) {
		accepts := compiled(t)
		context, config := cueConfig(t)
		compared, refused, passed := 0, 0, map[string]int{}
		for _, file := range podCorpus(t) {
			problems := podtemplate.CheckFile(file.path, []byte(file.content)).Errors()
			v, err := instance(file.content)
			if err != nil || v == nil || unreadable(problems) {
				continue
			}
			compared++
			if len(problems) > 0 {
				refused++
			}
			unknown := slices.ContainsFunc(problems, func(p position.Problem) bool {
				return p.Rule == position.RuleUnknownKey &&
					!strings.Contains(p.Path, ".$") // which directives are known depends on the list
			})
			v = map[string]any{"pod_template": v}
			byJSON := accepts.Validate(v)
			byCUE := config.Unify(context.Encode(v)).Validate(cue.Concrete(true))
			if byCUE != nil && len(problems) == 0 { // CUE may return a wrong error in a context with many values
				context, config = cueConfig(t)
				byCUE = config.Unify(context.Encode(v)).Validate(cue.Concrete(true))
			}
			for schema, err := range map[string]error{"the JSON Schema": byJSON, "CUE": byCUE} {
				switch {
				case err != nil && len(problems) == 0:
					t.Errorf("%s: %s rejects a template that vet accepts: %v", file.path, schema, err)
				case err == nil && unknown:
					t.Errorf("%s: %s accepts an unknown key", file.path, schema)
				case err == nil && len(problems) > 0:
					passed[schema]++
				}
			}
		}
		if refused < 150 || 3*passed["the JSON Schema"] > refused || 2*passed["CUE"] > refused {
			t.Errorf("vet rejects %d of %d templates; accepted of these: %v", refused, compared, passed)
		}
	})
}

// podCorpus returns the Pod templates of the archives in podtemplate/testdata.
func podCorpus(t *testing.T) (all []textFile) {
	t.Helper()
	for _, archive := range corpus(t, 5, "podtemplate/testdata/*.txtar") {
		for _, file := range txtar.Parse([]byte(archive.content)).Files {
			all = append(all, textFile{file.Name, strings.TrimSuffix(string(file.Data), "\n") + "\n"})
		}
	}
	return all
}
