package schema_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// namedInMessages are those of the names that a message about them shows. Each
// is written twice in one mapping, which is a mistake whatever the name.
func namedInMessages(names []string) []string {
	var shown []string
	for some := range slices.Chunk(names, 1_000) {
		var file strings.Builder
		for _, name := range some {
			fmt.Fprintf(&file, "%[1]q: 1\n%[1]q: 2\n", name)
		}
		for _, p := range schema.CheckPod("pod.yaml", []byte(file.String())) {
			if p.Rule == schema.RuleDuplicateKey {
				shown = append(shown, p.Path)
			}
		}
	}
	return shown
}

func TestNoMessageNamesAKeyThatLooksLikeASecret(t *testing.T) {
	names := []string{
		"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_a", "gho_a", "glpat-a", "xoxb-a", "AKIAIOSFODNN7EXAMPLE", "AKIA", "eyJhbGciOi", "pul-a",
		"A1B2C3D4E5F6G7H8", "ABCDEFGHIJKLMNOP", "correct-horse-1-battery-2-3", "k_1_2_3_long_name",
	}
	for _, name := range names {
		if got := namedInMessages([]string{name}); !slices.Equal(got, []string{"(a key)"}) {
			t.Errorf("%s is named: %v", name, got)
		}
		for _, p := range slices.Concat(schema.Vet(schema.Source{Content: []byte(name + ": y\n")}), schema.Vet(schema.Source{Environ: map[string]string{"PULUMI_AGENT_": "x"}, Content: []byte("docker: {" + name + ": y}\n")})) {
			if strings.Contains(fmt.Sprint(p), name) {
				t.Errorf("%s is in %v", name, p)
			}
		}
	}
	for _, name := range []string{"tokn", "AKI", "a1b2c3", "ABCDEFGHIJKLMNO", "ABCDEFGHIJ_KLMNOP", "polling_interval_2", "pollingIntervalMs10"} {
		if got := namedInMessages([]string{name}); !slices.Equal(got, []string{name}) {
			t.Errorf("%s is not named: %v", name, got)
		}
	}
}

func TestMessagesNameEveryKeyAndVariableOfTheSchema(t *testing.T) {
	fields, err := schema.Fields()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range fields {
		names = append(names, strings.Split(f.Key, ".")...)
		names = append(names, f.Variable)
	}
	for _, file := range []string{"pod.cue", "podoverlay.cue"} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s+"?([A-Za-z0-9_$-]+)"?[?!]?:`).FindAllStringSubmatch(string(content), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	if len(names) < 400 {
		t.Fatalf("only %d names", len(names))
	}
	got := namedInMessages(names)
	slices.Sort(got)
	if !slices.Equal(got, names) {
		t.Errorf("%d of %d names are in messages: %v", len(got), len(names), got)
	}
}
