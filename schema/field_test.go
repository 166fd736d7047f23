package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// effective reports whether a field is a current key or variable with a plain value or a list.
// The name of a pool does not count, because it has no default and no variable.
func effective(f schema.Field) bool {
	return f.Old == "" && f.Unused == "" && !f.Ignored && f.Kind != schema.KindMapping &&
		f.Kind != schema.KindMappings &&
		f.Kind != schema.KindTree &&
		f.Key != "pools.name"
}

func TestFields(t *testing.T) {
	t.Run("describe every key completely", func(t *testing.T) {
		classes := []schema.Class{
			schema.ReloadLive,
			schema.ReloadJob,
			schema.ReloadDrain,
			schema.ReloadRebind,
			schema.ReloadRestart,
		}
		seen := map[string]bool{}
		for _, f := range schema.Fields() {
			if !strings.HasSuffix(f.Doc, ".") {
				t.Errorf("%s has no documentation", f.Key)
			}
			if !effective(f) {
				continue
			}
			if !slices.Contains(classes, f.Reload) {
				t.Errorf("%s has reload class %q", f.Key, f.Reload)
			}
			if seen[f.Variable] {
				t.Errorf("%s shares its variable with another key", f.Key)
			}
			seen[f.Variable] = true
			documented := []string{
				"kubernetes.image",
				"kubernetes.image_pull_policy",
				"kubernetes.service_account",
				"kubernetes.cpu",
				"kubernetes.memory",
			}
			if f.OnlyVariable || slices.Contains(documented, f.Key) { // the name of the variable differs from the key
				continue
			}
			if want := "PULUMI_AGENT_" + strings.ToUpper(strings.ReplaceAll(f.Key, ".", "_")); f.Variable != want {
				t.Errorf("%s has variable %s, want %s", f.Key, f.Variable, want)
			}
			if f.Default == "" {
				t.Errorf("%s has no default", f.Key)
			}
			if (f.Kind == schema.KindList) != (f.Separator != "") {
				t.Errorf("%s is a %s with separator %q", f.Key, f.Kind, f.Separator)
			}
			if f.Kind == schema.KindInt && (f.Min == nil || f.Max == nil) ||
				f.Kind == schema.KindDuration && f.Longest == 0 {
				t.Errorf("%s has no bounds", f.Key)
			}
		}
	})

	t.Run("only the token is secret", func(t *testing.T) {
		for _, f := range schema.Fields() {
			if want := f.Key == "token"; f.Secret != want {
				t.Errorf("%s: secret is %t", f.Key, f.Secret)
			}
		}
	})
}

func TestLoadTypos(t *testing.T) {
	tried := 0
	for _, f := range schema.Fields() {
		if !effective(f) || f.OnlyVariable {
			continue
		}
		mapping, key, nested := strings.Cut(f.Key, ".")
		if !nested {
			mapping, key = "", f.Key
		}
		file := "token: pul-x\n"
		if nested {
			file += mapping + ":\n"
		}
		wrong := typosOf(key)
		for _, w := range wrong {
			if nested {
				w = "  " + w
			}
			file += w + ": x\n"
		}
		tried += len(wrong)
		_, problems := schema.Load(source(file))
		if len(problems) != len(wrong) {
			t.Fatalf("got %d problems for %d typos:\n%v", len(problems), len(wrong), problems)
		}
		for _, p := range problems {
			if p.Hint != `did you mean "`+f.Key+`"?` {
				t.Errorf("for %s: %v", f.Key, p)
			}
		}
	}
	if tried < 200 {
		t.Errorf("only %d typos were tried", tried)
	}
}

// typosOf returns the name with a letter missing, doubled, wrong or swapped with the next
// one, each at three positions.
func typosOf(name string) []string {
	var wrong []string
	for _, i := range []int{1, len(name) / 2, len(name) - 2} {
		wrong = append(wrong,
			name[:i]+name[i+1:],
			name[:i]+name[i:i+1]+name[i:],
			name[:i]+"q"+name[i+1:],
			name[:i]+name[i+1:i+2]+name[i:i+1]+name[i+2:],
		)
	}
	slices.Sort(wrong)
	return slices.DeleteFunc(slices.Compact(wrong), func(w string) bool { return w == name })
}
