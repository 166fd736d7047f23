package pods

import (
	"encoding/json"
	"hash/fnv"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/podtemplate"
)

// podTemplates returns the Pod templates in the testdata of package podtemplate, by name.
func podTemplates(t testing.TB) map[string][]byte {
	t.Helper()
	archives, err := filepath.Glob("../../../schema/podtemplate/testdata/*.txtar")
	if err != nil || len(archives) < 5 {
		t.Fatalf("found %d archives, %v", len(archives), err)
	}
	all := map[string][]byte{}
	for _, archive := range archives {
		found, err := txtar.ParseFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found.Files {
			all[file.Name] = file.Data
		}
	}
	return all
}

// mergesIfValid fails the test if vet accepts a template that the agent cannot merge. It
// reports whether vet accepts the template.
func mergesIfValid(t testing.TB, name string, content []byte) (good bool) {
	t.Helper()
	if len(podtemplate.CheckFile("worker-pod.json", content).Errors()) > 0 {
		return false
	}
	for _, template := range schema.Templates(schema.Source{Path: "worker-pod.json", Content: content}) {
		if _, err := kube.Preview(templatePool(template), "image", runtime.Work{},
			kube.Options{Image: "cmwa/cmwa:1", RunnerDirectory: podtemplate.RunnerDirectory}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	return true
}

// TestTemplatesMerge checks that the agent can merge every template that vet accepts.
func TestTemplatesMerge(t *testing.T) {
	count := 0
	for name, content := range podTemplates(t) {
		if mergesIfValid(t, name, content) {
			count++
		}
	}
	if count < 50 {
		t.Errorf("got %d valid templates, want at least 50", count)
	}
}

// TestTemplatesOwnMounts checks that vet refuses the mount paths of the agent's own
// volumes. The volume for files is not one: a template may mount another volume there.
func TestTemplatesOwnMounts(t *testing.T) {
	spec := templatePool(nil)
	options := kube.Options{RunnerDirectory: podtemplate.RunnerDirectory}
	document, err := kube.Preview(spec, "image", runtime.Work{}, options)
	if err != nil {
		t.Fatal(err)
	}
	containers := document["spec"].(map[string]any)["containers"].([]any)
	mounts := containers[0].(map[string]any)["volumeMounts"].([]any)
	if len(mounts) < 2 {
		t.Errorf("there are %d mounts", len(mounts))
	}
	for _, mount := range mounts {
		path := mount.(map[string]any)["mountPath"].(string)
		template := "spec: {volumes: [{name: a, emptyDir: {}}], containers: [" +
			"{name: pulumi-workflow, volumeMounts: [{name: a, mountPath: " + path + "}]}]}"
		problems := podtemplate.CheckFile("worker-pod.yaml", []byte(template))
		if (len(problems.Errors()) == 1) != (path != "/mnt/pulumi/workflow") {
			t.Errorf("%s: problems %v", path, problems)
		}
	}
}

// TestTemplatesMergeChanged makes one change in a template: it changes a value, duplicates
// an entry, or adds a directive. It checks one in fifty of 13,000 changes, because each
// check takes milliseconds.
func TestTemplatesMergeChanged(t *testing.T) {
	const sample = 50
	checked, good := 0, 0
	for name, content := range podTemplates(t) {
		var whole any
		if yaml.Unmarshal(content, &whole) != nil || len(podtemplate.CheckFile(name, content).Errors()) > 0 {
			continue
		}
		try := func() {
			text, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			hash := fnv.New32a()
			_, _ = hash.Write(text) // never fails
			if hash.Sum32()%sample != 0 {
				return
			}
			checked++
			if mergesIfValid(t, name+" "+string(text), text) {
				good++
			}
		}
		eachValue(whole, func(value any, set func(any)) {
			directive := func(verb string) map[string]any { return map[string]any{"$patch": verb} }
			for _, other := range []any{
				nil, "x", 1, true, []any{}, map[string]any{}, []any{value, value},
				directive("delete"), directive("replace"),
			} {
				set(other)
				try()
			}
			set(value)
			switch value := value.(type) {
			case map[string]any:
				for key, what := range map[string]any{"$patch": "replace", "$retainKeys": []any{"name"}} {
					value[key] = what
					try()
					delete(value, key)
				}
			case []any:
				for _, more := range append(slices.Clone(value), directive("replace")) {
					set(append(slices.Clone(value), more))
					try()
				}
				set(value)
			}
		})
	}
	if checked < 100 || good < 10 {
		t.Errorf("got %d templates, %d of them valid; want more", checked, good)
	}
}

// eachValue calls f for each value below value, with a function that replaces it.
func eachValue(value any, f func(value any, set func(any))) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			f(inner, func(other any) { value[key] = other })
			eachValue(inner, f)
		}
	case []any:
		for i, inner := range value {
			f(inner, func(other any) { value[i] = other })
			eachValue(inner, f)
		}
	}
}

func FuzzTemplatesMerge(f *testing.F) {
	f.Add([]byte(`{"spec": {"containers": [{"name": "pulumi-workflow", "env": [{"name": "A", "value": "b"}]}]}}`))
	f.Add([]byte("spec:\n  nodeSelector: {$retainKeys: [disk], disk: ssd}\n  volumes: [{name: a, $patch: delete}]\n"))
	f.Add([]byte("metadata: {labels: {a: null}}\n" +
		"spec: {initContainers: [{name: a, image: b, ports: [{containerPort: 1}]}]}\n"))
	f.Fuzz(func(t *testing.T, content []byte) { mergesIfValid(t, "worker-pod.json", content) })
}
