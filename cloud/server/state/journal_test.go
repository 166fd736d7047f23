package state

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func urn(name string) string { return "urn:pulumi:dev::web::pkg:m:T::" + name }

// one returns the text of a resource with further fields, such as `,"delete":true`.
func one(name, fields string) string {
	return fmt.Sprintf(`{"urn":%q,"custom":true,"type":"pkg:m:T"%s}`, urn(name), fields)
}

func base(t *testing.T, fields string, resources ...string) *Deployment {
	t.Helper()
	d, err := Decode([]byte(`{"version":3,"deployment":{"manifest":{"magic":"","version":""}` + fields +
		`,"resources":[` + strings.Join(resources, ",") + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// parse returns entries; each text lacks only the braces, the version and the sequence ID.
func parse(t *testing.T, texts ...string) []Entry {
	t.Helper()
	for i, text := range texts {
		texts[i] = fmt.Sprintf(`{"version":1,"sequenceID":%d,%s}`, i+1, text)
	}
	entries, err := Entries([]byte(`{"entries":[` + strings.Join(texts, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// replay returns the state, and fails if a Check refuses what a Journal accepts.
func replay(t *testing.T, on *Deployment, texts ...string) *Deployment {
	t.Helper()
	check, journal := NewCheck(on.Count()), NewJournal(on)
	for _, e := range parse(t, texts...) {
		if err := check.Add(e); err != nil {
			t.Fatal(err)
		}
		if err := journal.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	return journal.Deployment(noon, "")
}

// body returns the member deployment without its manifest.
func body(t *testing.T, d *Deployment) string {
	t.Helper()
	var all struct{ Deployment map[string]json.RawMessage }
	if err := json.Unmarshal(d.Encode(), &all); err != nil {
		t.Fatal(err)
	}
	delete(all.Deployment, "manifest")
	text, err := json.Marshal(all.Deployment)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestJournal(t *testing.T) {
	a, b, c := one("a", ""), one("b", ""), one("c", "")
	resources := func(all ...string) string { return `{"resources":[` + strings.Join(all, ",") + `]}` }
	aliases := func(name string) string { return fmt.Sprintf(`,"aliases":[%q]`, urn(name)) }
	references := func(name string) string {
		return fmt.Sprintf(`,"parent":%[1]q,"provider":"%[1]s::id","dependencies":[%[1]q],"viewOf":%[1]q`, urn(name))
	}
	for _, test := range []struct {
		name    string
		base    []string
		entries []string
		want    string
	}{
		{"no entry keeps the base", []string{a, b}, nil, resources(a, b)},
		{
			"a created resource stands before those of the base", []string{a},
			[]string{`"kind":0,"operationID":1`, `"kind":1,"operationID":1,"state":` + b}, resources(b, a),
		},
		{
			"an updated resource replaces the old one", []string{a, b},
			[]string{`"kind":1,"operationID":1,"removeOld":1,"state":` + one("b", `,"id":"2"`)},
			resources(one("b", `,"id":"2"`), a),
		},
		{
			"a deleted resource is gone", []string{a, b},
			[]string{`"kind":1,"operationID":1,"removeOld":0`}, resources(b),
		},
		{
			"a deleted new resource is gone", []string{a},
			[]string{`"kind":1,"operationID":7,"state":` + b, `"kind":1,"operationID":8,"removeNew":7`}, resources(a),
		},
		{
			"a replaced resource waits for its deletion", []string{a},
			[]string{`"kind":1,"operationID":1,"deleteOld":0,"state":` + one("a", `,"id":"2"`)},
			resources(one("a", `,"id":"2"`), one("a", `,"delete":true`)),
		},
		{
			"a replaced new resource waits for its deletion", nil,
			[]string{`"kind":1,"operationID":1,"state":` + a, `"kind":1,"operationID":2,"deleteNew":1,"state":` + b},
			resources(one("a", `,"delete":true`), b),
		},
		{
			"a resource that is deleted before its replacement is marked", []string{a},
			[]string{
				`"kind":1,"operationID":1,"state":` + b,
				`"kind":1,"operationID":2,"pendingReplacementOld":0`,
				`"kind":1,"operationID":3,"pendingReplacementNew":1`,
			},
			resources(one("b", `,"pendingReplacement":true`), one("a", `,"pendingReplacement":true`)),
		},
		{
			"outputs replace resources in their places", []string{a, b},
			[]string{
				`"kind":1,"operationID":1,"state":` + c,
				`"kind":4,"operationID":2,"removeOld":0,"state":` + one("a", `,"outputs":{"x":1}`),
				`"kind":4,"operationID":3,"removeNew":1,"state":` + one("c", `,"outputs":{"x":2}`),
			},
			resources(one("c", `,"outputs":{"x":2}`), one("a", `,"outputs":{"x":1}`), b),
		},
		{
			"a refresh replaces and removes in place", []string{a, b, c},
			[]string{
				`"kind":3,"operationID":1,"removeOld":0,"state":` + one("a", `,"id":"new"`),
				`"kind":3,"operationID":2,"removeOld":1`,
			},
			resources(one("a", `,"id":"new"`), c),
		},
		{
			"a failure closes the operation", nil,
			[]string{
				`"kind":0,"operationID":1,"operation":{"type":"creating","resource":` + a + `}`,
				`"kind":2,"operationID":1`,
			},
			`{}`,
		},
		{
			"an open operation is pending", nil,
			[]string{`"kind":0,"operationID":1,"operation":{"type":"creating","resource":` + a + `}`},
			`{"pending_operations":[{"type":"creating","resource":` + a + `}]}`,
		},
		{
			"a new base replaces the old one, but keeps its secrets provider", []string{a},
			[]string{
				`"kind":6,"secretsProvider":{"type":"service","state":{"url":"http://x"}}`,
				`"kind":5,"newSnapshot":{"manifest":{},"resources":[` + b + `]}`,
			},
			`{"resources":[` + b + `],"secrets_providers":{"type":"service","state":{"url":"http://x"}}}`,
		},
		{
			"indices start again after a rebuilt base", []string{a, b},
			[]string{
				`"kind":3,"operationID":1,"removeOld":0`, `"kind":7,"operationID":0`,
				`"kind":1,"operationID":2,"removeOld":0,"state":` + one("b", `,"id":"2"`),
			},
			resources(one("b", `,"id":"2"`)),
		},
		{
			"an extension is kept", nil,
			[]string{`"kind":8,"extensionRef":"r","extension":{"name":"n","version":"1","value":"AA=="}`},
			`{"extensions":{"r":{"name":"n","version":"1","value":"AA=="}}}`,
		},
		{
			"snippets replace those of the base", nil,
			[]string{`"kind":9,"snippets":[{"uuid":"1"},{"uuid":"2"}]`, `"kind":9,"snippets":[{"uuid":"3"}]`},
			`{"snippets":[{"uuid":"3"}]}`,
		},
		{
			"fields that this service does not know stay", []string{one("a", `,"future":{"x":[1.50]}`)},
			[]string{
				`"kind":1,"operationID":1,"state":` + one("b", `,"future":1e3`),
				`"kind":1,"operationID":2,"deleteOld":0`,
			},
			resources(one("b", `,"future":1e3`), one("a", `,"future":{"x":[1.50]},"delete":true`)),
		},
		{
			"references to a removed resource are removed by a refresh",
			[]string{a, b, one("c", fmt.Sprintf(`,"dependencies":[%q,%q],"propertyDependencies":{"x":[%q],"y":[%q]}`+
				`,"deletedWith":%q,"replaceWith":[%q],"parent":%q`,
				urn("a"), urn("b"), urn("a"), urn("b"), urn("a"), urn("a"), urn("a")))},
			[]string{`"kind":3,"operationID":1,"removeOld":0`},
			resources(b, one("c", fmt.Sprintf(`,"dependencies":[%q],"propertyDependencies":{"y":[%q]}`,
				urn("b"), urn("b")))),
		},
		{
			"references to an alias are replaced", []string{one("b", references("old"))},
			[]string{`"kind":1,"operationID":1,"state":` + one("a", aliases("old"))},
			resources(a, strings.Replace(one("b", references("a")), "pkg:m:T::b", "pkg:m:T$pkg:m:T::b", 1)),
		},
		{
			"an alias that two resources claim stays", []string{a},
			[]string{
				`"kind":1,"operationID":1,"state":` + one("b", aliases("old")),
				`"kind":1,"operationID":2,"state":` + one("c", aliases("old")+references("old")),
			},
			resources(one("b", aliases("old")), one("c", aliases("old")+references("old")), a),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := body(t, replay(t, base(t, "", test.base...), test.entries...))
			if got != test.want {
				t.Errorf("got\n  %s\nwant\n  %s", got, test.want)
			}
		})
	}
}

func TestJournalRefusesEntries(t *testing.T) {
	a := one("a", "")
	for _, test := range []struct{ name, entry, want string }{
		{"unknown kind", `"kind":10`, "kind 10 is unknown"},
		{"no kind", `"operationID":1`, "kind -1 is unknown"},
		{"negative index", `"kind":1,"operationID":1,"removeOld":-1`, "refers to index -1"},
		{"fraction as index", `"kind":1,"operationID":1,"removeOld":0.5`, "removeOld: expected int64"},
		{"old index out of range", `"kind":1,"operationID":1,"removeOld":1`, "the base has 1 resources"},
		{"mark out of range", `"kind":1,"operationID":1,"deleteOld":1`, "the base has 1 resources"},
		{"refresh out of range", `"kind":3,"operationID":1,"removeOld":1`, "the base has 1 resources"},
		{"unknown operation", `"kind":1,"operationID":1,"removeNew":9`, "operation 9 has made no resource"},
		{"mark of an unknown operation", `"kind":1,"operationID":1,"deleteNew":9`, "operation 9 has made no resource"},
		{"outputs of an unknown operation", `"kind":4,"operationID":1,"removeNew":9,"state":` + a, "operation 9"},
		{"outputs without a place", `"kind":4,"operationID":1,"state":` + a, "outputs need a state, and removeOld"},
		{"refresh without a place", `"kind":3,"operationID":1,"state":` + a, "needs removeOld or removeNew"},
		{"write without a state", `"kind":5`, "a write needs newSnapshot"},
		{"secrets manager without a provider", `"kind":6`, "needs secretsProvider"},
		{"extension without a reference", `"kind":8,"extension":{}`, "an extension needs extensionRef"},
		{"state without an urn", `"kind":1,"operationID":1,"state":{"type":"x"}`, "state: a resource has no urn"},
		{"state that is no object", `"kind":1,"operationID":1,"state":[]`, "state: expected an object"},
		{
			"field of another type", `"kind":1,"operationID":1,"state":{"urn":"u","dependencies":"d"}`,
			"state: dependencies: expected []string",
		},
		{"later version", `"kind":0,"version":2`, "version 2 is unknown"},
		{"field that comes twice", `"kind":0,"kind":1`, "two fields of the same name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			version := `"version":1,`
			if strings.Contains(test.entry, "version") {
				version = ""
			}
			entries, err := Entries([]byte(`{"entries":[{` + version + `"sequenceID":1,` + test.entry + `}]}`))
			if err == nil {
				check, journal := NewCheck(1), NewJournal(base(t, "", a))
				err = check.Add(entries[0])
				if other := journal.Add(entries[0]); fmt.Sprint(err) != fmt.Sprint(other) {
					t.Errorf("Check returns %v, but Journal returns %v", err, other)
				}
				if got := body(t, journal.Deployment(noon, "")); got != `{"resources":[`+a+`]}` {
					t.Errorf("a refused entry has changed the state to %s", got)
				}
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

func TestJournalRepeatedEntry(t *testing.T) {
	first, changed := parse(t, `"kind":1,"operationID":1,"state":`+one("a", ""))[0], parse(t, `"kind":0`)[0]
	journal := NewJournal(Empty())
	for range 2 {
		if err := journal.Add(first); err != nil {
			t.Fatal(err)
		}
	}
	if got := journal.Deployment(noon, "").Count(); got != 1 {
		t.Errorf("got %d resources of an entry that was sent twice", got)
	}
	want := "two different journal entries have the sequence ID 1"
	if err := journal.Add(changed); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

func TestJournalDeployment(t *testing.T) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("v3.259.0")))
	old := `"manifest":{"time":"2025-01-01T00:00:00Z","magic":"m","version":"v1","plugins":[]}`
	for _, test := range []struct{ name, base, version, want string }{
		{
			"the manifest has the version of the client", `"version":3,"deployment":{` + old + `}`, "v3.259.0",
			`"version":3,"deployment":{"manifest":{"time":"2026-05-04T12:00:00Z","magic":"` + sum +
				`","version":"v3.259.0"}}`,
		},
		{
			"without a version, that of the base stays", `"version":3,"deployment":{` + old + `}`, "",
			`"version":3,"deployment":{"manifest":{"time":"2026-05-04T12:00:00Z","magic":"m","version":"v1"}}`,
		},
		{
			"features of resources are computed, others stay",
			`"version":4,"features":["byteString","taint"],"deployment":{"resources":[` + one("a", `,"viewOf":"u"`) +
				`]}`, "",
			`"version":4,"features":["byteString","views"],"deployment":{"resources":[` + one("a", `,"viewOf":"u"`) +
				`],"manifest":{"time":"2026-05-04T12:00:00Z","magic":"","version":""}}`,
		},
		{
			"no feature means version 3",
			`"version":4,"features":["taint"],"deployment":{"resources":[` + one("a", "") + `]}`, "",
			`"version":3,"deployment":{"resources":[` + one("a", "") +
				`],"manifest":{"time":"2026-05-04T12:00:00Z","magic":"","version":""}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			on := decoded(t, "{"+test.base+"}")
			got := string(NewJournal(on).Deployment(noon, test.version).Encode())
			if want := "{" + test.want + "}"; got != want {
				t.Errorf("got\n  %s\nwant\n  %s", got, want)
			}
			if text := string(on.Encode()); text != "{"+test.base+"}" {
				t.Errorf("the base has changed to %s", text)
			}
		})
	}
}
