package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// tracked is a resource of a model of the engine. A new resource has the operation that made it, an old one its index
// in the base.
type tracked struct {
	text   string
	isNew  bool
	number int64
}

// field returns a reference to the resource, such as "removeOld":1.
func (r tracked) field(kind string) string {
	if r.isNew {
		return fmt.Sprintf(`"%sNew":%d`, kind, r.number)
	}
	return fmt.Sprintf(`"%sOld":%d`, kind, r.number)
}

// TestJournalProperty sends the entries of an engine that creates, updates, replaces, deletes and refreshes resources.
// The state must contain exactly the resources that the engine has at the end. Some requests are sent twice.
func TestJournalProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var have []tracked
		var texts []string
		for i := range rapid.IntRange(0, 5).Draw(t, "resources") {
			texts = append(texts, one(fmt.Sprintf("old%d", i), ""))
			have = append(have, tracked{text: texts[i], number: int64(i)})
		}
		on := decoded(t, `{"version":3,"deployment":{"resources":[`+strings.Join(texts, ",")+`]}}`)
		journal, check := NewJournal(on), NewCheck(on.Count())
		sequence, operation := 0, int64(0)
		send := func(format string, fields ...any) {
			sequence++
			body := fmt.Appendf(nil, `{"entries":[{"version":1,"sequenceID":%d,"operationID":%d,%s}]}`,
				sequence, operation, fmt.Sprintf(format, fields...))
			for range rapid.IntRange(1, 2).Draw(t, "times") {
				entries, err := Entries(body)
				if err != nil {
					t.Fatal(err)
				}
				if err := check.Add(entries[0]); err != nil {
					t.Fatal(err)
				}
				if err := journal.Add(entries[0]); err != nil {
					t.Fatal(err)
				}
			}
		}

		steps := []string{"create", "update", "replace", "delete", "refresh", "fail", "rebuild"}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			step := rapid.SampledFrom(steps).Draw(t, "step")
			if step == "rebuild" {
				send(`"kind":7`)
				have = nil
				for i, r := range journal.Deployment(noon, "").resources {
					have = append(have, tracked{text: string(r.text), number: int64(i)})
				}
				continue
			}
			operation++
			made := tracked{text: one(fmt.Sprintf("new%d", operation), ""), isNew: true, number: operation}
			send(`"kind":0,"operation":{"type":"updating","resource":%s}`, made.text)
			if step == "fail" {
				send(`"kind":2,"state":%s`, made.text)
				continue
			}
			if step == "create" || len(have) == 0 {
				send(`"kind":1,"state":%s`, made.text)
				have = append(have, made)
				continue
			}
			i := rapid.IntRange(0, len(have)-1).Draw(t, "resource")
			switch step {
			case "update":
				send(`"kind":1,"state":%s,%s`, made.text, have[i].field("remove"))
				have[i] = made
			case "replace":
				send(`"kind":1,"state":%s,%s`, made.text, have[i].field("delete"))
				operation++
				send(`"kind":1,%s`, have[i].field("remove"))
				have[i] = made
			case "delete":
				send(`"kind":1,%s`, have[i].field("remove"))
				have = slices.Delete(have, i, i+1)
			case "refresh":
				send(`"kind":3,"state":%s,%s`, made.text, have[i].field("remove"))
				have[i].text = made.text
			}
		}

		result := journal.Deployment(noon, "")
		var got, want []string
		for _, r := range decoded(t, string(result.Encode())).resources {
			got = append(got, string(r.text))
		}
		for _, r := range have {
			want = append(want, r.text)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || len(result.operations) != 0 {
			t.Errorf("got resources\n  %q\nwant\n  %q\nand %d operations", got, want, len(result.operations))
		}
	})
}

func decoded(t interface{ Fatal(...any) }, text string) *Deployment {
	d, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// checkDeployment fails if an encoded deployment is not read as the same one, or by Go's decoder with another number
// of resources.
func checkDeployment(t *testing.T, d *Deployment) {
	t.Helper()
	text := d.Encode()
	if again := decoded(t, string(text)).Encode(); !bytes.Equal(again, text) {
		t.Fatalf("decoding\n  %s\nand encoding it returned\n  %s", text, again)
	}
	var all struct{ Deployment map[string]json.RawMessage }
	var resources []json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if list := all.Deployment["resources"]; list != nil {
		if err := json.Unmarshal(list, &resources); err != nil {
			t.Fatal(err)
		}
	}
	if len(resources) != d.Count() || len(d.Resources()) != d.Count() {
		t.Fatalf("got %d of %d resources", len(resources), d.Count())
	}
	d.Outputs()
}

// The texts from which the fuzzer starts.
var (
	seedState = `{"version":4,"features":["views"],"deployment":{` +
		`"manifest":{"time":"2026-01-01T00:00:00Z","magic":"","version":""},` +
		`"secrets_providers":{"type":"service","state":{"url":"u"}},` +
		`"snippets":[{"references":{"r":"` + urn("old") + `"}}],"extensions":{"r":{}},"resources":[` +
		one("a", `,"outputs":{"x":[{"`+signature+`":"`+secretSignature+`"}]},"aliases":["`+urn("old")+`"]`) + `,` +
		one("b", `,"parent":"`+urn("old")+`","provider":"`+urn("a")+`::id",`+
			`"propertyDependencies":{"p":["`+urn("a")+`"]}`) +
		`],"pending_operations":[{"type":"creating","resource":` + one("c", "") + `}]}}`
	seedEntries = `{"entries":[{"version":1,"kind":6,"sequenceID":1,"secretsProvider":{"type":"service"}},` +
		`{"version":1,"kind":0,"operationID":1,"operation":{"type":"creating","resource":` + one("d", "") + `}},` +
		`{"version":1,"kind":1,"operationID":1,"state":` + one("d", "") + `,"deleteOld":0},{"version":1,"kind":7},` +
		`{"version":1,"kind":3,"operationID":2,"removeOld":1},{"version":1,"kind":9,"snippets":[{}]},` +
		`{"version":1,"kind":8,"extensionRef":"s","extension":{}},{"version":1,"kind":4,"removeOld":0,"state":` +
		one("a", "") + `}]}`
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte(seedState))
	f.Add([]byte(`{"version":3,"deployment":{"resources":null,"\u0072esources":[{"urn":"\ud800\\"}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Decode(text)
		if err != nil {
			return
		}
		checkDeployment(t, d)
		checkDeployment(t, RewriteProvider(d, "http://b", "acme", "web", "dev"))
	})
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(seedState), []byte(seedEntries))
	f.Fuzz(func(t *testing.T, base, body []byte) {
		on, err := Decode(base)
		if err != nil {
			return
		}
		entries, err := Entries(body)
		if err != nil {
			return
		}
		check, journal := NewCheck(on.Count()), NewJournal(on)
		for _, e := range entries {
			refused := check.Add(e)
			if other := journal.Add(e); fmt.Sprint(other) != fmt.Sprint(refused) {
				t.Fatalf("Check returned %v, and Journal %v", refused, other)
			}
		}
		got := journal.Deployment(noon, "v3.259.0")
		checkDeployment(t, got)
		if check.base+len(check.made)-len(check.removed)-len(check.unmade) != got.Count() {
			t.Fatalf("Check counts other resources than the %d of the state", got.Count())
		}
	})
}

func FuzzRename(f *testing.F) {
	f.Add([]byte(seedState), "prod", "shop")
	f.Fuzz(func(t *testing.T, text []byte, stack, project string) {
		d, err := Decode(text)
		if err != nil {
			return
		}
		renamed := Rename(d, Name{"web", "dev"}, Name{project, stack})
		checkDeployment(t, renamed)
		if renamed.Count() != d.Count() || len(renamed.operations) != len(d.operations) {
			t.Fatalf("%d resources became %d", d.Count(), renamed.Count())
		}
	})
}
