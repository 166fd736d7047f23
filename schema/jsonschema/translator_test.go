package jsonschema_test

import (
	"encoding/json"
	"errors"
	"testing"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"github.com/cmwa-project/cmwa/schema/jsonschema"
)

// parsed returns the syntax of expressions.
func parsed(t *testing.T, texts ...string) []ast.Expr {
	t.Helper()
	var exprs []ast.Expr
	for _, text := range texts {
		expr, err := parser.ParseExpr("", text)
		if err != nil {
			t.Fatal(err)
		}
		exprs = append(exprs, expr)
	}
	return exprs
}

func TestTranslate(t *testing.T) {
	for expr, want := range map[string]string{
		`string`:                        `{"type":"string"}`,
		`_`:                             `{}`,
		`int & >=1 & <=9`:               `{"type":"integer","minimum":1,"maximum":9}`,
		`int32 & >=0`:                   `{"type":"integer","minimum":0,"maximum":2147483647}`,
		`"a" | "b"`:                     `{"type":"string","enum":["a","b"]}`,
		`"" | int`:                      `{"anyOf":[{"type":"integer"},{"type":"string","pattern":"^$"}]}`,
		`"a" | int`:                     `{"anyOf":[{"type":"string","enum":["a"]},{"type":"integer"}]}`,
		`=~"^a"`:                        `{"type":"string","pattern":"^a"}`,
		`!~"^a"`:                        `{"type":"string","not":{"pattern":"^a"}}`,
		`=~"^a" & =~"b$"`:               `{"type":"string","pattern":"^a","allOf":[{"type":"string","pattern":"b$"}]}`,
		`[string, ...string]`:           `{"type":"array","minItems":1,"items":{"type":"string"}}`,
		`{[string]: bool}`:              `{"type":"object","additionalProperties":{"type":"boolean"}}`,
		`strings.MaxRunes(3)`:           `{"type":"string","maxLength":3}`,
		`(#Name & strings.MaxRunes(3))`: `{"$ref":"#/$defs/Name","type":"string","maxLength":3}`,
	} {
		t.Run(expr, func(t *testing.T) {
			var translator jsonschema.Translator
			o, err := translator.Translate(parsed(t, expr)...)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := json.Marshal(o); err != nil || string(got) != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		})
	}
	for _, expr := range []string{`{a: 1}`, `[string]`, `a.b`, `f(1)`, `1.5`, `bytes`, `-x`} {
		t.Run(expr+" has no translation", func(t *testing.T) {
			var translator jsonschema.Translator
			if o, err := translator.Translate(parsed(t, expr)...); err == nil {
				t.Errorf("the translation is %v, want an error", o)
			}
		})
	}
}

func TestDefinitions(t *testing.T) {
	var translator jsonschema.Translator
	if _, err := translator.Translate(parsed(t, "#B")...); err != nil {
		t.Fatal(err)
	}
	all, err := translator.Definitions(func(name string) (jsonschema.Object, error) {
		if name == "#B" {
			return translator.Translate(parsed(t, "#A | null")...)
		}
		return jsonschema.Object{}.With("type", "string"), nil
	})
	text, _ := json.Marshal(all)
	const want = `{"A":{"type":"string"},"B":{"anyOf":[{"$ref":"#/$defs/A"},{"type":"null"}]}}`
	if err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	wrong := errors.New("wrong")
	_, err = translator.Definitions(func(string) (jsonschema.Object, error) { return nil, wrong })
	if !errors.Is(err, wrong) {
		t.Errorf("Definitions returns %v, want the error of define", err)
	}
}

func TestNullable(t *testing.T) {
	for _, test := range []struct {
		o    jsonschema.Object
		want string
	}{
		{jsonschema.Object{}, `{}`},
		{jsonschema.Object{}.With("type", "string"), `{"type":["string","null"]}`},
		{jsonschema.Object{}.With("$ref", "#/$defs/A"), `{"anyOf":[{"$ref":"#/$defs/A"},{"type":"null"}]}`},
	} {
		if text, err := json.Marshal(jsonschema.Nullable(test.o)); err != nil || string(text) != test.want {
			t.Errorf("%s, %v, want %s", text, err, test.want)
		}
	}
}

func TestWithPatternMessage(t *testing.T) {
	for expr, want := range map[string]string{
		`=~"^a"`: `{"type":"string","pattern":"^a","patternErrorMessage":"must be x"}`,
		`"" | =~"^a"`: `{"anyOf":[{"type":"string","pattern":"^a","patternErrorMessage":"must be x"},` +
			`{"type":"string","pattern":"^$","patternErrorMessage":"must be x"}]}`,
		`string`: `{"type":"string"}`,
		`!~"^a"`: `{"type":"string","not":{"pattern":"^a"}}`,
	} {
		var translator jsonschema.Translator
		o, err := translator.Translate(parsed(t, expr)...)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := json.Marshal(o)
		if got, err := json.Marshal(o.WithPatternMessage("must be x")); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		if after, _ := json.Marshal(o); string(after) != string(before) {
			t.Errorf("the original changed to %s", after)
		}
	}
}

func TestReplace(t *testing.T) {
	o := jsonschema.Object{}.With("a", 1).With("b", 2)
	if got, _ := json.Marshal(o.Replace("a", 3).Replace("c", 4)); string(got) != `{"a":3,"b":2}` {
		t.Errorf("got %s", got)
	}
	if o.Get("a") != 1 {
		t.Error("the original changed")
	}
}
