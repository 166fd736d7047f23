package schema_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

const referenceFile = "../examples/reference.yaml"

func TestReferenceFile(t *testing.T) {
	golden(t, referenceFile, string(schema.Reference()))
}

func TestReference(t *testing.T) {
	t.Run("has no problem except missing files", func(t *testing.T) {
		content := string(schema.Reference())
		for _, p := range vet(content) {
			if p.Severity == position.Error || p.Rule != position.RuleMissingFile {
				t.Error(p)
			}
		}
		if !strings.Contains(content, "\ntoken_file: /etc/cmwa/token\n") {
			t.Error("the reference sets no credentials")
		}
		for number, line := range strings.Split(content, "\n") {
			if utf8.RuneCountInString(line) > 100 || strings.TrimRight(line, " ") != line {
				t.Errorf("line %d is too long, or ends with spaces", number+1)
			}
		}
	})

	t.Run("every key can be uncommented", func(t *testing.T) {
		text := string(schema.Reference())
		set := map[string]bool{}
		for block := range strings.SplitSeq(text, "\n\n") {
			var file strings.Builder
			for line := range strings.Lines(block) {
				if settingLine.MatchString(line) && !strings.HasPrefix(line, "#   ") {
					file.WriteString(line[1:])
				} else if !strings.HasPrefix(line, "#") || file.Len() > 0 {
					file.WriteString(strings.TrimPrefix(line, "#"))
				}
			}
			if file.Len() == 0 {
				continue
			}
			v, err := instance(file.String())
			if err != nil {
				t.Fatalf("%v:\n%s", err, file.String())
			}
			addKeys(set, "", v)
			allowed := []position.Rule{position.RuleMissingFile, position.RuleTimes}
			for _, p := range exceptCredentials(vet(file.String())) {
				if !slices.Contains(allowed, p.Rule) {
					t.Errorf("%v\nin:\n%s", p, file.String())
				}
			}
		}
		for _, f := range schema.Fields() {
			if current(f) && !f.OnlyVariable && !set[f.Key] {
				t.Errorf("the key %s is not in the reference", f.Key)
			}
			if !strings.Contains(text, f.Variable) {
				t.Errorf("the variable %s is not in the reference", f.Variable)
			}
		}
	})
}

// current reports whether a field is not an old name and has an effect.
func current(f schema.Field) bool { return f.Old == "" && f.Unused == "" && !f.Ignored }

// exceptCredentials returns the problems of an example, without those of its missing credentials.
func exceptCredentials(problems position.Problems) position.Problems {
	return slices.DeleteFunc(problems, func(p position.Problem) bool {
		return p.Rule == position.RuleMissingToken || p.Rule == position.RuleCredentials
	})
}

// settingLine matches a line of the reference that is a setting after its # is removed.
var settingLine = regexp.MustCompile(`^#(\S|  )`)

func TestExample(t *testing.T) {
	accepts := compiled(t)
	for _, f := range schema.Fields() {
		example := f.Example()
		if wanted := current(f) && !f.OnlyVariable && f.Kind != schema.KindMapping; (example != "") != wanted {
			t.Errorf("%s has the example %q, want an example: %t", f.Key, example, wanted)
		}
		if example == "" {
			continue
		}
		for _, p := range exceptCredentials(vet(example).Errors()) {
			t.Errorf("%s: %v", f.Key, p)
		}
		v, err := instance(example)
		if err != nil || accepts.Validate(v) != nil {
			t.Errorf("%s: %v", f.Key, accepts.Validate(v))
		}
	}
}

func TestExplain(t *testing.T) {
	t.Run("has all facts of a field", func(t *testing.T) {
		for _, f := range schema.Fields() {
			name := f.Key
			if f.OnlyVariable {
				name = f.Variable
			}
			text, err := schema.Explain(name, 100)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			normalized := " " + strings.Join(strings.Fields(text), " ") + " "
			for _, want := range []string{name, f.Doc, f.ValueText(), f.Variable, f.DefaultText(),
				f.VariableText(), f.Reload.Meaning(), f.Unused, f.Old, strings.Join(strings.Fields(f.Example()), " ")} {
				if (current(f) || want == f.Old || want == f.Doc) && !strings.Contains(normalized, want) {
					t.Errorf("the explanation of %s lacks %q:\n%s", name, want, text)
				}
			}
			if by, err := schema.Explain(f.Variable, 100); f.Variable != "" && (err != nil || by != text) {
				t.Errorf("the explanation of %s differs from that of its variable, %v", name, err)
			}
		}
	})

	t.Run("lines fit the width", func(t *testing.T) {
		for _, width := range []int{60, 120} {
			for _, name := range schema.Names() {
				if strings.HasPrefix(name, "PULUMI_") {
					continue // a variable has the same explanation as its key
				}
				text, err := schema.Explain(name, width)
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(text) {
					line = strings.TrimRight(line, "\n")
					long := utf8.RuneCountInString(line) > width
					if fact := len(strings.Fields(line)) <= 2; long && !fact && !strings.HasPrefix(line, "    ") {
						t.Errorf("a line is longer than %d columns: %q", width, line)
					}
				}
			}
			for line := range strings.Lines(schema.Overview(width)) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > max(width, 82) {
					t.Errorf("at width %d a line has %d columns: %q", width, n, line)
				}
			}
		}
	})

	t.Run("suggests a known name", func(t *testing.T) {
		for name, want := range map[string]string{
			"polling_intervl":     "did you mean polling_interval?",
			"pollinginterval":     "did you mean polling_interval?",
			"Token":               "did you mean token?",
			"PULUMI_AGENT_TOKN":   "did you mean PULUMI_AGENT_TOKEN?",
			"pulumi_agent_syslog": "did you mean PULUMI_AGENT_SYSLOG?",
			"cluster":             "did you mean ecs.cluster?",
			"memory":              "did you mean docker.memory or kubernetes.memory?",
			"docker.cpu":          "did you mean docker.cpus?",
			"docker.pull_image":   "did you mean pull_image?",
			"name":                "did you mean pools.name?",
			"xyzzy":               "cmwa explain lists all keys",
			"":                    "cmwa explain lists all keys",
		} {
			_, err := schema.Explain(name, 100)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %s", name, err, want)
			}
		}
	})
}

func TestOverview(t *testing.T) {
	text := schema.Overview(100)
	for _, f := range schema.Fields() {
		name := f.Key
		if f.OnlyVariable {
			name = f.Variable
		}
		lines := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+` .*$`).FindAllString(text, -1)
		if current(f) != (len(lines) == 1) {
			t.Errorf("%s has %d lines in the table", name, len(lines))
		}
	}
}
