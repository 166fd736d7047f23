package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

func fields(t *testing.T) []schema.Field {
	t.Helper()
	all, err := schema.Fields()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// effective reports whether a key is one to write today.
func effective(f schema.Field) bool {
	return f.Old == "" && f.Unused == "" && !f.Ignored && f.Kind != schema.KindMapping && f.Kind != schema.KindMappings && f.Kind != schema.KindTree && f.Key != "pools.name"
}

func TestTheSchemaSaysEverythingAboutEveryKey(t *testing.T) {
	classes := []schema.Class{schema.ReloadLive, schema.ReloadJob, schema.ReloadDrain, schema.ReloadRebind, schema.ReloadRestart}
	seen := map[string]bool{}
	for _, f := range fields(t) {
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
		documented := []string{"kubernetes.image", "kubernetes.image_pull_policy", "kubernetes.service_account", "kubernetes.cpu", "kubernetes.memory"}
		if f.OnlyVariable || slices.Contains(documented, f.Key) { // with names of their own
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
		if f.Kind == schema.KindInt && (f.Min == nil || f.Max == nil) || f.Kind == schema.KindDuration && f.Longest == 0 {
			t.Errorf("%s has no bounds", f.Key)
		}
	}
}

func TestOnlyTheTokenIsSecret(t *testing.T) {
	for _, f := range fields(t) {
		if want := f.Key == "token"; f.Secret != want {
			t.Errorf("%s: secret is %t", f.Key, f.Secret)
		}
	}
}

func TestOneSlipInAKeyIsAnsweredWithTheKey(t *testing.T) {
	tried := 0
	for _, f := range fields(t) {
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
		wrong := slipsOf(key)
		for _, w := range wrong {
			if nested {
				w = "  " + w
			}
			file += w + ": x\n"
		}
		tried += len(wrong)
		_, problems := schema.Load(source(file))
		if len(problems) != len(wrong) {
			t.Fatalf("%d problems for %d slips:\n%v", len(problems), len(wrong), problems)
		}
		for _, p := range problems {
			if p.Hint != `did you mean "`+f.Key+`"?` {
				t.Errorf("for %s: %v", f.Key, p)
			}
		}
	}
	if tried < 200 {
		t.Errorf("only %d slips were tried", tried)
	}
}

// slipsOf returns a word with one letter missing, one doubled, one wrong and two
// swapped, each in three places.
func slipsOf(word string) []string {
	var wrong []string
	for _, i := range []int{1, len(word) / 2, len(word) - 2} {
		wrong = append(wrong,
			word[:i]+word[i+1:],
			word[:i]+word[i:i+1]+word[i:],
			word[:i]+"q"+word[i+1:],
			word[:i]+word[i+1:i+2]+word[i:i+1]+word[i+2:],
		)
	}
	slices.Sort(wrong)
	return slices.DeleteFunc(slices.Compact(wrong), func(w string) bool { return w == word })
}
