package schema_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
)

// template is one file of an archive of them.
type template struct{ name, content string }

// templates reads an archive: files, each after a line such as -- name.yaml --,
// and a title before the first one.
func templates(t testing.TB, archive string) []template {
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	var found []template
	for line := range strings.Lines(string(content)) {
		name, ok := strings.CutPrefix(line, "-- ")
		switch {
		case ok:
			found = append(found, template{name: strings.TrimSuffix(name, " --\n")})
		case len(found) > 0:
			found[len(found)-1].content += line
		}
	}
	return found
}

func archives(t testing.TB) []string {
	found, err := filepath.Glob("testdata/pod/*.txtar")
	if err != nil || len(found) < 5 {
		t.Fatalf("found %d archives, %v", len(found), err)
	}
	return found
}

func TestEveryMistakeOfATemplateIsToldWithItsPlaceAndItsCure(t *testing.T) {
	count := 0
	for _, archive := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".txtar"), func(t *testing.T) {
			var got strings.Builder
			for _, file := range templates(t, archive) {
				count++
				problems := schema.CheckPod(file.name, []byte(file.content))
				if good := strings.HasPrefix(file.name, "good-"); good == (len(problems.Errors()) > 0) {
					t.Errorf("%s: errors: %v", file.name, problems.Errors())
				}
				for _, p := range problems {
					if p.Rule == schema.RuleInternal || p.Line == 0 {
						t.Errorf("%s: rule %s, line %d: %s", file.name, p.Rule, p.Line, p)
					}
				}
				got.WriteString("-- " + file.name + " --\n")
				for _, p := range problems {
					got.WriteString(p.Severity.String() + " " + string(p.Rule) + "\n" + p.String() + "\n")
				}
			}
			golden := strings.TrimSuffix(archive, ".txtar") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("run with -update if this is right:\n%s", diff)
			}
		})
	}
	if count < 200 {
		t.Errorf("%d templates are too few to trust", count)
	}
}
