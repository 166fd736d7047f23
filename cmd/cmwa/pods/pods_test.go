package pods

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// podTemplates returns the templates with which their check is tested.
func podTemplates(t testing.TB) map[string][]byte {
	t.Helper()
	archives, err := filepath.Glob("../../../schema/podtemplate/testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatalf("found %d archives, %v", len(archives), err)
	}
	all := map[string][]byte{}
	for _, archive := range archives {
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		_, files, _ := strings.Cut("\n"+string(content), "\n-- ")
		for file := range strings.SplitSeq(files, "\n-- ") {
			name, text, _ := strings.Cut(file, " --\n")
			all[name] = []byte(text)
		}
	}
	return all
}

// judgedAlike reports an error if vet finds no error in a template and the agent
// cannot merge it. Good is false if vet finds one.
func judgedAlike(t testing.TB, name string, content []byte) (good bool) {
	t.Helper()
	if len(podtemplate.CheckFile("worker-pod.json", content).Errors()) > 0 {
		return false
	}
	for _, template := range schema.Templates(schema.Source{Path: "worker-pod.json", Content: content}) {
		if _, err := kube.Preview(templatePool(template), "image", kube.Options{Image: "cmwa/cmwa:1", RunnerDirectory: podtemplate.RunnerDirectory}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	return true
}

// TestTemplatesAreJudgedAlike compares the check of templates with their merge: the
// agent can merge every template in which vet finds no error.
func TestTemplatesAreJudgedAlike(t *testing.T) {
	count := 0
	for name, content := range podTemplates(t) {
		if judgedAlike(t, name, content) {
			count++
		}
	}
	if count < 50 {
		t.Errorf("only %d templates are good", count)
	}
}

func FuzzTemplatesAreJudgedAlike(f *testing.F) {
	for _, content := range podTemplates(f) {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) { judgedAlike(t, "worker-pod.json", content) })
}
