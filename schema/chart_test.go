package schema_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
)

//go:generate go test -run ^TestJSONSchemaChart$ -update .

// chartValues is the schema of the values of the Helm chart. A part of it, the value
// config, is the schema of a configuration.
const chartValues = "../examples/chart/values.schema.json"

func TestJSONSchemaChart(t *testing.T) {
	got, err := os.ReadFile(chartValues)
	if err != nil {
		t.Fatal(err)
	}
	want, err := withConfiguration(got)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(chartValues, want, 0o644); err != nil {
			t.Fatal(err)
		}
		got = want
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run make reference to generate %s:\n%s", chartValues, diff)
	}
}

// withConfiguration returns the schema of the chart's values, in which the value config has
// the schema of a configuration. The definitions ($defs) are at the root of the result,
// because references are relative to the root.
func withConfiguration(values []byte) ([]byte, error) {
	text, err := schema.JSONSchema()
	if err != nil {
		return nil, err
	}
	var config, all map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(values, &all); err != nil {
		return nil, err
	}
	all["$defs"] = config["$defs"]
	for _, key := range []string{"$schema", "$id", "$defs"} {
		delete(config, key)
	}
	all["properties"].(map[string]any)["config"] = config
	var again bytes.Buffer
	encoder := json.NewEncoder(&again)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	err = encoder.Encode(all)
	return again.Bytes(), err
}
