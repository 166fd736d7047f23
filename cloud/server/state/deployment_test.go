package state

import (
	"fmt"
	"strings"
	"testing"
)

func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

func TestDecode(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"other fields beside the deployment go", `{"isInvalid":false,"version":3,"deployment":{}}`, ``},
		{"version 4 with features", `{"version":4,"features":["views","future"],"deployment":{"new":[1.0]}}`, ``},
		{"no JSON", `{"version":3,`, "not valid JSON"},
		{"no UTF-8", `{"version":3,"features":["` + "\xff" + `"],"deployment":{}}`, "not valid JSON in UTF-8"},
		{"two values", `{} {}`, "not valid JSON"},
		{"list", `[]`, "expected an object"},
		{"old version", `{"version":2,"deployment":{}}`, "only versions 3 and 4"},
		{"later version", `{"version":5,"deployment":{}}`, "only versions 3 and 4"},
		{"no version", `{"deployment":{}}`, "only versions 3 and 4"},
		{"version as text", `{"version":"3","deployment":{}}`, "version: expected int"},
		{"no deployment", `{"version":3}`, "no deployment"},
		{"null deployment", `{"version":3,"deployment":null}`, "no deployment"},
		{"resource of another type", `{"version":3,"deployment":{"resources":[7]}}`, "element 0: expected an object"},
		{"resource without an urn", `{"version":3,"deployment":{"resources":[{}]}}`, "element 0: a resource has "},
		{"operation without a resource", `{"version":3,"deployment":{"pending_operations":[{}]}}`, "no resource"},
		{"100 levels", `{"version":3,"deployment":{"x":` + nested(98) + `}}`, ""},
		{"101 levels", `{"version":3,"deployment":{"x":` + nested(99) + `}}`, "100 levels"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := Decode([]byte(test.text))
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got error %v, want %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Replace(test.text, `"isInvalid":false,`, "", 1)
			if got := string(d.Encode()); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestEmpty(t *testing.T) {
	want := `{"version":3,"deployment":{"manifest":{"time":"0001-01-01T00:00:00Z","magic":"","version":""}}}`
	if got := string(Empty().Encode()); got != want || Empty().Count() != 0 {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRewriteProvider(t *testing.T) {
	for _, test := range []struct{ name, before, want string }{
		{
			"the service",
			`,"secrets_providers":{"type":"service","state":{"url":"http://a","insecure":true,"stack":"old"}}`,
			`"secrets_providers":{"type":"service","state":` +
				`{"url":"http://b","insecure":true,"stack":"dev","owner":"acme","project":"web"}}`,
		},
		{
			"a passphrase", `,"secrets_providers":{"type":"passphrase","state":{"salt":"v1:x"}}`,
			`"secrets_providers":{"type":"passphrase","state":{"salt":"v1:x"}}`,
		},
		{"none", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := base(t, test.before)
			text := string(before.Encode())
			got := string(RewriteProvider(before, "http://b", "acme", "web", "dev").Encode())
			if !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if string(before.Encode()) != text {
				t.Error("the argument has changed")
			}
		})
	}
}

func TestRename(t *testing.T) {
	// %[1]s is the stack, %[2]s the project.
	const form = `{"version":3,"deployment":{"manifest":{},"secrets_providers":{"type":"service",` +
		`"state":{"url":"http://a","owner":"acme","project":"%[2]s","stack":"%[1]s"}},"resources":[` +
		`{"urn":"urn:pulumi:%[1]s::%[2]s::pulumi:pulumi:Stack::%[2]s-%[1]s","type":"pulumi:pulumi:Stack"},` +
		`{"urn":"urn:pulumi:%[1]s::%[2]s::a:b:C::x",` +
		`"parent":"urn:pulumi:%[1]s::%[2]s::pulumi:pulumi:Stack::%[2]s-%[1]s",` +
		`"aliases":["urn:pulumi:%[1]s::%[2]s::C::y","urn:pulumi:dev::old::C::x","urn:pulumi:dev2::web::C::x"],` +
		`"provider":"urn:pulumi:%[1]s::%[2]s::pulumi:providers:a::default::0-1",` +
		`"propertyDependencies":{"p":["urn:pulumi:%[1]s::%[2]s::a:b:C::y"]},` +
		`"outputs":{"text":"of urn:pulumi:dev::web::a:b:C::y","urn:pulumi:dev::web::a":[` +
		`{"deep":"urn:pulumi:%[1]s::%[2]s::\"y\""}]}}],` +
		`"pending_operations":[{"type":"creating","resource":{"urn":"urn:pulumi:%[1]s::%[2]s::a:b:C::z"}}]}}`
	before, want := fmt.Sprintf(form, "dev", "web"), fmt.Sprintf(form, "prod", "shop")
	before = strings.Replace(before, `urn:pulumi:dev::web::\"y`, `urn:pulumi\u003adev::web::\"y`, 1)
	d, err := Decode([]byte(before))
	if err != nil {
		t.Fatal(err)
	}
	renamed := Rename(d, Name{"web", "dev"}, Name{"shop", "prod"})
	if got := string(renamed.Encode()); got != want {
		t.Errorf("got\n  %s\nwant\n  %s", got, want)
	}
}

func TestOutputs(t *testing.T) {
	const secret = `{"4dabf18193072939515e22adb298388d":"1b47061264138c4ac30d75fd1eb44270","ciphertext":"Y2lwaGVy"}`
	d := base(t, "", one("a", `,"outputs":{"plain":"secret of a"}`),
		`{"urn":"urn:pulumi:dev::web::pulumi:pulumi:Stack::web-dev","type":"pulumi:pulumi:Stack","outputs":`+
			`{"text":"a\nb","number":1.50,"password":`+secret+`,"list":[ {"x":`+secret+`} , true ],`+
			`"tags":["\u003cb\u003e \\u003c"],"twice":{"x":`+secret+`,"x":1,"x":`+secret+`},"long":"`+
			strings.Repeat("x", 10_000)+`"}}`)
	want := []Property{
		{"text", "a\nb", false},
		{"number", "1.50", false},
		{"password", "[secret]", true},
		{"list", `[{"x":"[secret]"},true]`, false},
		{"tags", `["<b> \\u003c"]`, false},
		{"twice", `{"x":"[secret]"}`, false},
		{"long", "[10002 bytes]", false},
	}
	got := d.Outputs()
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
	if outputs := base(t, "", one("a", "")).Outputs(); outputs != nil {
		t.Errorf("got %v for a state without a root stack", outputs)
	}
}
