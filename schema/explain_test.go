package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

func TestExplainPoolKeys(t *testing.T) {
	for _, f := range schema.Fields() {
		if !f.Pool || !current(f) || strings.HasPrefix(f.Key, "pools.") {
			continue
		}
		text, err := schema.Explain("pools."+f.Key, 0)
		if err != nil {
			t.Errorf("pools.%s: %v", f.Key, err)
			continue
		}
		for _, want := range []string{"pools." + f.Key + "\n", f.Doc, "in an entry of pools"} {
			if !strings.Contains(text, want) {
				t.Errorf("pools.%s: got no %q in\n%s", f.Key, want, text)
			}
		}
		_, example, found := strings.Cut(text, "\n    pools:\n")
		if found != (f.Kind != schema.KindMapping) {
			t.Errorf("pools.%s: the explanation has an example: %t, want %t", f.Key, found, !found)
		}
		if !found {
			continue
		}
		file := strings.ReplaceAll("    pools:\n"+example, "\n    ", "\n")
		for _, p := range exceptCredentials(vet(strings.TrimPrefix(file, "    ")).Errors()) {
			t.Errorf("the example of pools.%s: %v", f.Key, p)
		}
	}
	for _, name := range []string{"pools.strict", "pools.workflow_runners_directory", "pools.docker.none"} {
		if _, err := schema.Explain(name, 0); err == nil {
			t.Errorf("%s is explained, but it is not a key of a pool", name)
		}
	}
}

func TestExplainRules(t *testing.T) {
	for _, info := range position.Rules() {
		t.Run(string(info.Rule), func(t *testing.T) {
			text, err := schema.Explain(string(info.Rule), 0)
			if err != nil {
				t.Fatal(err)
			}
			example := schema.RuleExample(info.Rule)
			shown := strings.ReplaceAll(example, "\n", "\n    ")
			for _, want := range []string{info.Description + ". ", "\n  fix  ", shown} {
				if !strings.Contains(text+"    ", want) {
					t.Errorf("got no %q in\n%s", want, text)
				}
			}
			if example == "" {
				return
			}
			found := schema.Vet(schema.Source{Path: "agent.yaml", Content: []byte(example),
				Release: schema.Release{Targets: []string{"docker", "kubernetes"}}})
			if !slices.ContainsFunc(found, func(p position.Problem) bool { return p.Rule == info.Rule }) {
				t.Errorf("the example has no problem of this rule, but\n%v", found)
			}
		})
	}
}

func TestOverviewWidth(t *testing.T) {
	text := schema.Overview(0)
	if strings.Contains(text, "…") {
		t.Error("a line is cut although the width is 0")
	}

	// The columns begin at the same place in each row.
	table, _, _ := strings.Cut(text, "\n\n")
	head, _, _ := strings.Cut(table, "\n")
	for line := range strings.Lines(table) {
		at := strings.Index(head, "CHANGES")
		isSection := strings.TrimSpace(line[at:at+len("next job")]) == "" // without a default and a class
		if line[at-1] != ' ' || line[at] == ' ' && !isSection {
			t.Errorf("the column CHANGES does not begin below its heading: %q", line)
		}
	}
	for _, f := range schema.Fields() {
		first, _, _ := strings.Cut(f.Doc, ". ")
		if first = strings.TrimSuffix(first, "."); current(f) && !strings.Contains(text, first) {
			t.Errorf("the table has no %q", first)
		}
		if !current(f) || f.OnlyVariable {
			continue
		}
		// A row must be clear without the rows around it.
		for _, pronoun := range []string{"that", "this", "it", "them", "these", "those", "such"} {
			if strings.HasPrefix(strings.ToLower(first), pronoun+" ") || len(strings.Fields(first)) < 3 {
				t.Errorf("the row of %s is %q", f.Key, first)
			}
		}
	}
	for _, name := range []string{"max_concurrent_workflows", "unknown-key"} {
		text, err := schema.Explain(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Split(text, "\n"); len(lines[2]) < 101 {
			t.Errorf("the first paragraph of %s is wrapped although the width is 0: %q", name, lines[2])
		}
	}
}

func TestClassNames(t *testing.T) {
	text := schema.Overview(0)
	_, list, _ := strings.Cut(text, "A CHANGE TAKES EFFECT\n")
	var names []string
	for line := range strings.Lines(list) {
		names = append(names, strings.TrimSpace(line[:10]))
	}
	if want := []string{"live", "next job", "drain", "rebind", "restart"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
