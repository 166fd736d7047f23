package secret_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// decoded decodes JSON.
func decoded(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestMask(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"text":             {`"plain"`, `"plain"`},
		"text with token":  {`["apikey=pul-x", 1, true, null]`, `["[secret]", 1, true, null]`},
		"value of a name":  {`{"name": "A", "value": "x"}`, `{"name": "A", "value": "[secret]"}`},
		"number as value":  {`{"name": "A", "value": 1234}`, `{"name": "A", "value": "[secret]"}`},
		"empty value":      {`{"name": "A", "value": ""}`, `{"name": "A", "value": ""}`},
		"value of no name": {`{"key": "A", "value": "x"}`, `{"key": "A", "value": "x"}`},
		"command": {
			`{"name": "side", "command": ["a", "b"]}`,
			`{"name": "side", "command": ["[secret]", "[secret]"]}`,
		},
		"public command": {
			`{"name": "main", "args": ["a"], "exec": {"command": ["b"]}}`,
			`{"name": "main", "args": ["a"], "exec": {"command": ["[secret]"]}}`,
		},
		"annotations": {
			`{"annotations": {"a": "x", "cmwa.job": "j",
				"controller.kubernetes.io/pod-deletion-cost": "5", "karpenter.sh/do-not-disrupt": "true"}}`,
			`{"annotations": {"a": "[secret]", "cmwa.job": "j",
				"controller.kubernetes.io/pod-deletion-cost": "5", "karpenter.sh/do-not-disrupt": "true"}}`,
		},
		"token in an annotation of the agent": {
			`{"annotations": {"cmwa.job": "pul-x"}}`, `{"annotations": {"cmwa.job": "[secret]"}}`,
		},
		"annotations of another type": {`{"annotations": ["a"]}`, `{"annotations": ["[secret]"]}`},
		"volumes": {
			`{"csi": {"volumeAttributes": {"a": "x"}}, "flexVolume": {"options": {"b": {"c": "x"}}}}`,
			`{"csi": {"volumeAttributes": {"a": "[secret]"}}, "flexVolume": {"options": {"b": {"c": "[secret]"}}}}`,
		},
		"options of DNS": {
			`{"options": [{"name": "ndots", "value": "5"}]}`, `{"options": [{"name": "ndots", "value": "[secret]"}]}`,
		},
		"query of a path":         {`{"path": "/live?key=x"}`, `{"path": "/live?[secret]"}`},
		"path with a token":       {`{"path": "/pul-x?a"}`, `{"path": "[secret]"}`},
		"path without a query":    {`{"path": "/live"}`, `{"path": "/live"}`},
		"path of another type":    {`{"path": [1]}`, `{"path": [1]}`},
		"command without a value": {`{"command": null}`, `{"command": null}`},
	} {
		t.Run(name, func(t *testing.T) {
			in := decoded(t, c.in)
			text, err := json.Marshal(secret.Mask(in, "main"))
			if err != nil {
				t.Fatal(err)
			}
			if got := decoded(t, string(text)); !reflect.DeepEqual(got, decoded(t, c.want)) {
				t.Errorf("got %s, want %s", text, c.want)
			}
			if !reflect.DeepEqual(in, decoded(t, c.in)) {
				t.Errorf("the argument is now %v", in)
			}
		})
	}
	t.Run("masked values are equal if their texts are equal", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.SampledFrom([]string{"/a?b", "/a?c", "/b?b", "pul-x", "pul-y"})
			a, b := text.Draw(t, "a"), text.Draw(t, "b")
			mask := func(text string) any { return secret.Mask(map[string]any{"path": text}) }
			if got := reflect.DeepEqual(mask(a), mask(b)); got != (a == b) {
				t.Fatalf("%q and %q: got %v", a, b, got)
			}
		})
	})
	t.Run("nothing below a command is shown", func(t *testing.T) {
		leaf := rapid.OneOf(rapid.Just[any]("hunter2"), rapid.Just[any](4711), rapid.Just[any](nil))
		value := rapid.Map(rapid.SliceOf(rapid.Map(rapid.MapOf(rapid.StringMatching("[a-z]{1,5}|command|path|name"), leaf),
			func(m map[string]any) any { return m })), func(list []any) any { return list })
		rapid.Check(t, func(t *rapid.T) {
			text, err := json.Marshal(secret.Mask(map[string]any{"command": value.Draw(t, "value")}))
			if err != nil || strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "4711") {
				t.Fatalf("%v: %s", err, text)
			}
		})
	})
}
