package schema_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

// namedInMessages returns the names that the message about a duplicate key shows. Each name
// occurs twice in a mapping, which is an error for every name.
func namedInMessages(names []string) []string {
	var shown []string
	for some := range slices.Chunk(names, 1_000) {
		var file strings.Builder
		for _, name := range some {
			fmt.Fprintf(&file, "%[1]q: 1\n%[1]q: 2\n", name)
		}
		for _, p := range podtemplate.CheckFile("pod.yaml", []byte(file.String())) {
			if p.Rule == position.RuleDuplicateKey {
				shown = append(shown, p.Path)
			}
		}
	}
	return shown
}

func TestLoadMessages(t *testing.T) {
	t.Run("do not name a key that looks like a secret", func(t *testing.T) {
		names := []string{
			"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_a", "gho_a", "glpat-a", "xoxb-a",
			"AKIAIOSFODNN7EXAMPLE", "AKIA", "eyJhbGciOi", "pul-a", "A1B2C3D4E5F6G7H8", "ABCDEFGHIJKLMNOP",
			"correct-horse-1-battery-2-3", "k_1_2_3_long_name",
		}
		for _, name := range names {
			if got := namedInMessages([]string{name}); !slices.Equal(got, []string{"(a key)"}) {
				t.Errorf("the message about %s shows %v, want (a key)", name, got)
			}
			for _, src := range []schema.Source{
				{Content: []byte(name + ": y\n")},
				{Content: []byte("docker: {" + name + ": y}\n"), Environ: map[string]string{"PULUMI_AGENT_": "x"}},
			} {
				if got := fmt.Sprint(schema.Vet(src)); strings.Contains(got, name) {
					t.Errorf("%s is in %s", name, got)
				}
			}
		}
		for _, name := range []string{"tokn", "AKI", "a1b2c3", "ABCDEFGHIJKLMNO", "ABCDEFGHIJ_KLMNOP",
			"polling_interval_2", "pollingIntervalMs10"} {
			if got := namedInMessages([]string{name}); !slices.Equal(got, []string{name}) {
				t.Errorf("the message about %s shows %v, want the name", name, got)
			}
		}
	})

	t.Run("can name every key and variable of the schema", func(t *testing.T) {
		var names []string
		for _, f := range schema.Fields() {
			names = append(names, strings.Split(f.Key, ".")...)
			names = append(names, f.Variable)
		}
		for _, file := range []string{"podtemplate/pod.cue", "podtemplate/overlay.cue"} {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			keys := regexp.MustCompile(`(?m)^\s+"?([A-Za-z0-9_$-]+)"?[?!]?:`)
			for _, m := range keys.FindAllStringSubmatch(string(content), -1) {
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
	})

	t.Run("have a hint for a Helm template", func(t *testing.T) {
		const hint = "if this is a template, for example of Helm, vet its output"
		for _, c := range []struct{ content, want string }{
			{"token: {{ .Values.token }}\n", "agent.yaml:1:9: token: a key must be plain text\n  hint: " + hint},
			{"log_level: {{ .Values.level }}\nsyslog: {{ .Values.syslog }}\n",
				"agent.yaml:2:10: syslog: a key must be plain text\n  hint: " + hint},
			{"{{ .Values.all }}\n", "agent.yaml:1:2: a key must be plain text\n  hint: " + hint},
		} {
			if problems := loadOf(c.content); !strings.Contains(problems.Error(), c.want) {
				t.Errorf("%q: %v", c.content, problems)
			}
		}
		list := loadOf("? [a]\n: b\n")
		if strings.Contains(list.Error(), "Helm") || list.Err() == nil {
			t.Errorf("a list as a key: %v", list)
		}
		pod := podtemplate.CheckFile("pod.yaml", []byte("spec: {{ .Values.spec }}\n"))
		if !strings.Contains(pod.Error(), hint) {
			t.Errorf("a Pod: %v", pod)
		}
	})
}

func TestLoadDocument(t *testing.T) {
	t.Run("an empty second document is ignored", func(t *testing.T) {
		for _, end := range []string{"---", "---\n", "---\n\n# end\n", "--- # end\n", "...\n---\n...\n"} {
			for name, problems := range map[string]position.Problems{
				"configuration": schema.Vet(source("token: pul-a\n" + end)),
				"template":      podtemplate.CheckFile("pod.yaml", []byte("spec: {hostname: a}\n"+end)),
			} {
				if len(problems) > 0 {
					t.Errorf("%s that ends in %q: %v", name, end, problems)
				}
			}
		}
		for _, end := range []string{"---\nlog_level: info\n", "---\n~\n", "--- null\n", "---\n''\n",
			"--- !!null\n", "--- &a\n", "---\n[]\n", "---\n---\n", "---\n---\nlog_level: info\n"} {
			problems := loadOf("token: a\n" + end)
			if !strings.Contains(problems.Error(), "the file must be one document") {
				t.Errorf("%q is accepted: %v", end, problems)
			}
		}
		if loadOf("token: a\n---\n[").Err() == nil {
			t.Error("a broken document is accepted")
		}
	})

	t.Run("may have every escape of JSON", func(t *testing.T) {
		for content, want := range map[string]string{
			`{"token": "a", "service_url": "https:\/\/pulumi.example.com"}`:           "https://pulumi.example.com",
			`{"token": "a", "working_directory": "\/a\\\/\ud83d\ude00\uD83D\uDE00b"}`: `/a\/😀😀b`,
			"\uFEFF" + `{"token": "a", "working_directory": "\/a"}`:                   "/a",
		} {
			c, problems := schema.Load(source(content))
			if c == nil {
				t.Errorf("%s: %v", content, problems)
				continue
			}
			if p := c.Pools[0]; p.ServiceURL != want && p.WorkingDirectory != want {
				t.Errorf("%s: %q, %q", content, p.ServiceURL, p.WorkingDirectory)
			}
		}
		problems := schema.Vet(source("apiVersion: v1\nkind: Secret\nstringData:\n  pulumi-workflow-agent.yaml: |\n" +
			`    {"token": "pul-a", "working_directory": "\/\ud83d\ude00",` + "\n" +
			`     "log_level": 7}` + "\n"))
		if len(problems) != 1 || problems[0].Line != 6 || problems[0].Column != 19 {
			t.Errorf("in a manifest: %v", problems)
		}
	})
}
