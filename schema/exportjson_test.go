package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/schema"
)

// jsonSchemaObject is an object of the JSON Schema of a configuration.
type jsonSchemaObject = map[string]any

// readJSONSchema decodes the result of an export.
func readJSONSchema(t *testing.T, export func() ([]byte, error)) jsonSchemaObject {
	t.Helper()
	text, err := export()
	if err != nil {
		t.Fatal(err)
	}
	var root jsonSchemaObject
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// eachObject calls visit for every object in a value, with its path.
func eachObject(value any, path string, visit func(path string, o jsonSchemaObject)) {
	switch value := value.(type) {
	case jsonSchemaObject:
		visit(path, value)
		for name, inner := range value {
			eachObject(inner, path+"/"+name, visit)
		}
	case []any:
		for _, inner := range value {
			eachObject(inner, path+"/*", visit)
		}
	}
}

func TestJSONSchemaMessages(t *testing.T) {
	root := readJSONSchema(t, schema.JSONSchema)
	patterns, deprecated := 0, 0
	check := func(path string, o jsonSchemaObject) {
		if _, ok := o["pattern"].(string); ok && !strings.HasSuffix(path, "/not") {
			patterns++
			if message, _ := o["patternErrorMessage"].(string); !strings.HasPrefix(message, "must be ") {
				t.Errorf("%s has a pattern with the message %q", path, message)
			}
		}
		if o["deprecated"] == true {
			deprecated++
			if message, _ := o["deprecationMessage"].(string); message == "" {
				t.Errorf("%s is deprecated without a message", path)
			}
		}
	}
	definitions := root["$defs"].(jsonSchemaObject)
	for _, part := range []any{root["properties"], definitions["Pool"], definitions["Duration"], definitions["CPUs"]} {
		eachObject(part, "", check)
	}
	if patterns < 40 || deprecated < 3 {
		t.Errorf("found %d patterns and %d deprecated keys", patterns, deprecated)
	}
}

func TestJSONSchemaRestartPolicy(t *testing.T) {
	spec := readJSONSchema(t, schema.JSONSchema)["$defs"].(jsonSchemaObject)["PodSpec"].(jsonSchemaObject)
	policy := spec["properties"].(jsonSchemaObject)["restartPolicy"]
	var offered []any
	eachObject(policy, "", func(_ string, o jsonSchemaObject) {
		if enum, ok := o["enum"].([]any); ok {
			offered = append(offered, enum...)
		}
	})
	if len(offered) != 1 || offered[0] != "Never" {
		t.Errorf("editors offer %v, want only Never", offered)
	}
}

// standardKeywords are the keywords of JSON Schema, draft 2020-12, that the export may use.
var standardKeywords = strings.Fields(`$schema $id $ref $defs $comment title description default examples
	deprecated type enum const allOf anyOf oneOf not if then else properties patternProperties propertyNames
	additionalProperties required minProperties maxProperties items prefixItems minItems maxItems uniqueItems
	contains pattern minLength maxLength format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf`)

// typesOfKeywords are the types of the values that a keyword checks.
var typesOfKeywords = map[string][]string{
	"properties": {"object"}, "patternProperties": {"object"}, "additionalProperties": {"object"},
	"required": {"object"}, "items": {"array"}, "pattern": {"string"}, "minLength": {"string"},
	"minimum": {"number", "integer"}, "maximum": {"number", "integer"},
}

// strictProblems returns the problems that a strict validator reports about a schema: keywords
// that the standard does not define, and keywords for a type that the schema does not allow.
// inherited are the types that the outer schemas allow for the same value.
func strictProblems(schema any, path string, inherited []string) (problems []string) {
	o, ok := schema.(jsonSchemaObject)
	if !ok {
		return nil // true or false
	}
	types := inherited
	switch stated := o["type"].(type) {
	case string:
		types = []string{stated}
	case []any:
		types = nil
		for _, one := range stated {
			types = append(types, one.(string))
		}
	}
	for keyword, value := range o {
		if !slices.Contains(standardKeywords, keyword) {
			problems = append(problems, path+": unknown keyword "+keyword)
		}
		needed := typesOfKeywords[keyword]
		if needed != nil && !slices.ContainsFunc(needed, func(t string) bool { return slices.Contains(types, t) }) {
			problems = append(problems, path+": no type for "+keyword)
		}

		switch keyword {
		case "properties", "patternProperties", "$defs":
			for name, inner := range value.(jsonSchemaObject) {
				problems = append(problems, strictProblems(inner, path+"/"+name, nil)...)
			}
		case "items", "additionalProperties", "contains":
			problems = append(problems, strictProblems(value, path+"/"+keyword, nil)...)
		case "not", "if", "then", "else":
			problems = append(problems, strictProblems(value, path+"/"+keyword, types)...)
		case "allOf", "anyOf", "oneOf":
			for _, inner := range value.([]any) {
				problems = append(problems, strictProblems(inner, path+"/"+keyword, types)...)
			}
		}
	}
	return problems
}

func TestStandardJSONSchema(t *testing.T) {
	standard := readJSONSchema(t, schema.StandardJSONSchema)
	if problems := strictProblems(standard, "", nil); len(problems) > 0 {
		t.Errorf("got\n%s\nwant no problem of a strict validator", strings.Join(problems, "\n"))
	}

	// The schema for editors differs only in the keywords that editors define.
	editors := readJSONSchema(t, schema.JSONSchema)
	if len(strictProblems(editors, "", nil)) == 0 {
		t.Error("the schema for editors has no keyword of editors, so this test proves nothing")
	}
	delete(editors, "$comment")
	eachObject(editors, "", func(_ string, o jsonSchemaObject) {
		delete(o, "patternErrorMessage")
		delete(o, "deprecationMessage")
	})
	if !reflect.DeepEqual(standard, editors) {
		t.Error("the schemas differ in more than the keywords of editors")
	}
}

//go:generate go test -run ^TestJSONSchemaChart$ -update .

// chartValues is the schema of the values of the Helm chart. A part of it, the value
// config, is the schema of a configuration.
const chartValues = "../examples/chart/values.schema.json"

func TestJSONSchemaChart(t *testing.T) {
	values, err := os.ReadFile(chartValues)
	if err != nil {
		t.Fatal(err)
	}
	var all jsonSchemaObject
	if err := json.Unmarshal(values, &all); err != nil {
		t.Fatal(err)
	}
	config := readJSONSchema(t, schema.JSONSchema)
	all["$defs"] = config["$defs"] // at the root, because references are relative to the root
	for _, key := range []string{"$schema", "$id", "$defs"} {
		delete(config, key)
	}
	all["properties"].(jsonSchemaObject)["config"] = config
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(all); err != nil {
		t.Fatal(err)
	}
	golden(t, chartValues, want.String())
}

//go:generate go test -run ^TestJSONSchemaChartReadme$ -update .

// valueRows appends the rows of the table of values in the README of the chart: the name, the default and the
// comment of each value. It reports values of the schema without a default in values.yaml.
func valueRows(t *testing.T, rows []string, prefix string, values *yaml.Node, properties jsonSchemaObject) []string {
	t.Helper()
	documented := map[string]bool{}
	for i := 0; i < len(values.Content); i += 2 {
		key, value := values.Content[i], values.Content[i+1]
		documented[key.Value] = true
		comment := strings.Join(strings.Fields(strings.ReplaceAll(
			"\n"+key.HeadComment+"\n"+key.LineComment+"\n"+value.LineComment, "\n#", " ")), " ")
		comment = strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(comment)
		group := value.Kind == yaml.MappingNode && len(value.Content) > 0
		if !group {
			var decoded any
			if err := value.Decode(&decoded); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(decoded)
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, "| `"+prefix+key.Value+"` | `"+string(text)+"` | "+comment+" |")
			continue
		}
		if comment != "" {
			rows = append(rows, "| `"+prefix+key.Value+"` | | "+comment+" |")
		}
		property, _ := properties[key.Value].(jsonSchemaObject) // a nil map if the schema allows any object
		inner, _ := property["properties"].(jsonSchemaObject)
		rows = valueRows(t, rows, prefix+key.Value+".", value, inner)
	}
	for name := range properties {
		if !documented[name] && prefix+name != "enabled" { // of the condition of a parent chart
			t.Errorf("values.yaml does not have %s%s", prefix, name)
		}
	}
	return rows
}

// TestJSONSchemaChartReadme checks that the table of values in the README of the chart is that of values.yaml.
func TestJSONSchemaChartReadme(t *testing.T) {
	const readme, begin, end = "../examples/chart/README.md", "<!-- generated from values.yaml -->\n", "<!-- end -->\n"
	var values yaml.Node
	var chart jsonSchemaObject
	for path, decode := range map[string]func([]byte) error{
		"../examples/chart/values.yaml": func(text []byte) error { return yaml.Unmarshal(text, &values) },
		chartValues:                     func(text []byte) error { return json.Unmarshal(text, &chart) },
	} {
		text, err := os.ReadFile(path)
		if err == nil {
			err = decode(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, tail, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(tail, end)
	if !found || !ended {
		t.Fatalf("%s does not have the lines %q and %q", readme, begin, end)
	}
	rows := []string{"| value | default | description |", "| --- | --- | --- |"}
	rows = valueRows(t, rows, "", values.Content[0], chart["properties"].(jsonSchemaObject))
	golden(t, readme, before+begin+"\n"+strings.Join(rows, "\n")+"\n\n"+end+after)
}
