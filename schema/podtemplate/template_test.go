package podtemplate_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cmwa-project/cmwa/schema/podtemplate"
	"github.com/cmwa-project/cmwa/schema/position"
)

var update = flag.Bool("update", false, "write the problems into the golden files")

// archives returns the paths of the archives in testdata.
func archives(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(found) < 5 {
		t.Fatalf("found %d archives, %v", len(found), err)
	}
	return found
}

// templates returns the files of an archive.
func templates(t testing.TB, archive string) []txtar.File {
	t.Helper()
	found, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	return found.Files
}

func TestCheckFile(t *testing.T) {
	count := 0
	for _, archive := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".txtar"), func(t *testing.T) {
			var got strings.Builder
			for _, file := range templates(t, archive) {
				count++
				problems := podtemplate.CheckFile(file.Name, file.Data)
				if good := strings.HasPrefix(file.Name, "good-"); good == (len(problems.Errors()) > 0) {
					t.Errorf("%s: has the prefix good-: %t, errors: %v", file.Name, good, problems.Errors())
				}
				got.WriteString("-- " + file.Name + " --\n")
				for _, p := range problems {
					if p.Rule == position.RuleInternal || p.Line == 0 {
						t.Errorf("%s: internal problem, or no line: rule %s, line %d: %s", file.Name, p.Rule, p.Line, p)
					}
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
				t.Errorf("run with -update if the change is intended:\n%s", diff)
			}
		})
	}
	if count < 200 {
		t.Errorf("got %d templates, want at least 200", count)
	}
}

// TestCheckFileManyProblems checks that CheckFile reports every one of many problems. The
// test would be slow if the time of CheckFile grew with the square of their number.
func TestCheckFileManyProblems(t *testing.T) {
	entry := "    - {name: A, value: 1}\n"
	content := "spec:\n  containers:\n  - name: pulumi-workflow\n    env:\n" + strings.Repeat(entry, 1_600)
	if problems := podtemplate.CheckFile("pod.yaml", []byte(content)); len(problems.Errors()) != 1_600 {
		t.Errorf("got %d errors, want 1600", len(problems.Errors()))
	}
}

// TestCheckFileSecrets puts a secret into keys and values, and checks that no problem quotes
// the secret.
func TestCheckFileSecrets(t *testing.T) {
	const secret = "pul-0123456789abcdef"
	for _, archive := range archives(t) {
		for _, file := range templates(t, archive) {
			content := string(file.Data)
			for _, changed := range []string{
				strings.ReplaceAll(content, ": ", ": "+secret),
				strings.ReplaceAll(content, "name", secret),
				strings.ReplaceAll(content, "- ", "- "+secret),
				strings.ReplaceAll(content, "{", "{"+secret+": "),
			} {
				for _, p := range podtemplate.CheckFile("pod.yaml", []byte(changed)) {
					if strings.Contains(p.String(), secret) {
						t.Fatalf("%s: a problem quotes the secret: %s", file.Name, p)
					}
				}
			}
		}
	}
}

func FuzzCheckFile(f *testing.F) {
	for _, archive := range archives(f) {
		for _, file := range templates(f, archive) {
			f.Add(file.Data)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		const secret = "pul-5ecre7"
		for _, content := range [][]byte{content, bytes.ReplaceAll(content, []byte("a"), []byte(secret))} {
			for _, p := range podtemplate.CheckFile("pod.yaml", content) {
				if strings.Contains(p.String(), secret) || p.Rule == position.RuleInternal || p.Message == "" {
					t.Errorf("the problem quotes the secret, is internal, or has no message: %+v", p)
				}
			}
		}
	})
}

// podKeys returns the keys of one definition of pod.cue.
func podKeys(t *testing.T, definition string) []string {
	content, err := os.ReadFile("pod.cue")
	if err != nil {
		t.Fatal(err)
	}
	_, tail, found := strings.Cut(string(content), "\n"+definition+": {\n")
	body, _, closed := strings.Cut(tail, "\n}")
	if !found || !closed {
		t.Fatalf("%s is not in pod.cue", definition)
	}
	var keys []string
	for line := range strings.Lines(body) {
		if key, _, ok := strings.Cut(strings.TrimSpace(line), "?:"); ok {
			keys = append(keys, strings.Trim(key, `"`))
		}
	}
	return keys
}

// TestSuggestion checks that the hint for a typo names the key.
func TestSuggestion(t *testing.T) {
	count := 0
	for definition, form := range map[string]string{
		"#PodSpec":   "spec: {KEY: a}\n",
		"#Container": "spec: {containers: [{name: pulumi-workflow, KEY: a}]}\n",
		"#Volume":    "spec: {volumes: [{name: a, emptyDir: {}, KEY: a}]}\n",
		"#EnvVar":    "spec: {containers: [{name: pulumi-workflow, env: [{name: a, KEY: a}]}]}\n",
		"#Probe":     "spec: {containers: [{name: pulumi-workflow, livenessProbe: {KEY: a}}]}\n",
	} {
		keys := podKeys(t, definition)
		for _, key := range keys {
			for _, typo := range typos(key) {
				if slices.Contains(keys, typo) || len(typo) < 3 {
					continue
				}
				count++
				got := podtemplate.CheckFile("pod.yaml", []byte(strings.Replace(form, "KEY", typo, 1))).Error()
				if !strings.Contains(got, `"`+key+`"`) && !nearAnother(typo, key, keys) {
					t.Errorf("typo %s of the key %s: no hint names the key: %s", typo, key, got)
				}
			}
		}
	}
	if count < 1_000 {
		t.Errorf("got %d typos, want at least 1000", count)
	}
}

// typos returns variants of a key: one letter is missing, doubled or swapped with the next
// letter, or the first letter is a capital, or all letters are lowercase.
func typos(key string) []string {
	found := []string{strings.ToUpper(key[:1]) + key[1:], strings.ToLower(key)}
	for i := range key {
		found = append(found, key[:i]+key[i+1:], key[:i+1]+key[i:])
		if i+1 < len(key) && key[i] != key[i+1] {
			found = append(found, key[:i]+key[i+1:i+2]+key[i:i+1]+key[i+2:])
		}
	}
	return slices.DeleteFunc(slices.Compact(found), func(typo string) bool { return typo == key })
}

// nearAnother reports whether a typo also differs from another key by at most one letter.
func nearAnother(typo, key string, keys []string) bool {
	return slices.ContainsFunc(keys, func(other string) bool {
		if other == key {
			return false
		}
		start, end := 0, 0
		for start < min(len(typo), len(other)) && typo[start] == other[start] {
			start++
		}
		for end < min(len(typo), len(other))-start && typo[len(typo)-1-end] == other[len(other)-1-end] {
			end++
		}
		return max(len(typo), len(other))-start-end <= 1
	})
}
