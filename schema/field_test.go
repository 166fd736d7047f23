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
	without := []schema.Kind{schema.KindMapping, schema.KindMappings, schema.KindTree}
	return current(f) && !slices.Contains(without, f.Kind) && f.Key != "pools.name"
}

// TestFields checks that the fields describe every key completely, and that only the token is secret.
func TestFields(t *testing.T) {
	classes := []schema.Class{
		schema.ReloadLive, schema.ReloadJob, schema.ReloadDrain, schema.ReloadRebind, schema.ReloadRestart,
	}
	documented := []string{ // their variables have other names
		"kubernetes.image", "kubernetes.image_pull_policy", "kubernetes.service_account", "kubernetes.cpu",
		"kubernetes.memory",
	}
	seen := map[string]bool{}
	for _, f := range schema.Fields() {
		if !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%s has no documentation", f.Key)
		}
		if want := f.Key == "token"; f.Secret != want {
			t.Errorf("%s: secret is %t", f.Key, f.Secret)
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
		if f.OnlyVariable || slices.Contains(documented, f.Key) {
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
}
