package kube

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// previewOptions are those of an agent whose image has a version.
var previewOptions = Options{Image: "cmwa/cmwa:1", RunnerDirectory: runnerDirectory}

// pooled returns a pool with a template.
func pooled(template string) runtime.PoolSpec {
	return runtime.PoolSpec{
		Name: "main",
		Identity: runtime.Identity{
			Service: "https://api.example.com", Credentials: "token", Target: "kubernetes", Namespace: "jobs",
		},
		Tuning: runtime.Tuning{
			Token: secret.New("the-token-of-the-pool"),
			Place: runtime.Place{Kubernetes: runtime.Kubernetes{Template: []byte(template)}},
		},
	}
}

// secretive is a template with everything that may be secret.
const secretive = `{"metadata": {"annotations": {"note": "eyJhbGciOi.eyJzdWIi.x"}}, "spec": {
	"containers": [
		{"name": "pulumi-workflow", "env": [{"name": "PASSWORD", "value": "hunter2"}, {"name": "EMPTY", "value": ""}]},
		{"name": "proxy", "image": "proxy:1", "command": ["proxy", "--password", "hunter2"], "args": ["hunter2"],
			"livenessProbe": {"exec": {"command": ["check", "hunter2"]}}}]}}`

func TestPreview(t *testing.T) {
	t.Run("with a template", func(t *testing.T) {
		document, err := Preview(pooled(secretive), "pulumi/pulumi:3", previewOptions)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "preview", document)
		text, _ := json.Marshal(document)
		for _, hidden := range []string{"hunter2", "eyJ", "the-token-of-the-pool"} {
			if strings.Contains(string(text), hidden) {
				t.Errorf("it shows %s", hidden)
			}
		}
	})

	t.Run("it is the Pod that Start makes", func(t *testing.T) {
		spec := pooled(`{"spec": {"nodeSelector": {"disk": "ssd"}}}`)
		document, err := Preview(spec, "pulumi/pulumi:3", previewOptions)
		if err != nil {
			t.Fatal(err)
		}
		pod, err := podOf(exampleJob(spec, "pulumi/pulumi:3"), namePrefix+exampleName, settingsOf("cmwa/cmwa:1"))
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Spec any }
		want := got
		for target, value := range map[any]any{&got: document, &want: pod} {
			text, _ := json.Marshal(value)
			if err := json.Unmarshal(text, target); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("want -, got +:\n%s", diff)
		}
	})

	t.Run("it is the same each time", func(t *testing.T) {
		first, err := Preview(pooled(secretive), "i", previewOptions)
		second, again := Preview(pooled(secretive), "i", previewOptions)
		if err != nil || again != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("%v, %v:\n%s", err, again, cmp.Diff(first, second))
		}
	})

	t.Run("a template that does not fit", func(t *testing.T) {
		if _, err := Preview(pooled(`{"spec": null}`), "i", previewOptions); err == nil {
			t.Error("no error")
		}
	})
}

// lines returns changes as text.
func lines(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

func TestTemplateChanges(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"no template":    {``, ""},
		"empty template": {`{}`, ""},
		"what may be secret": {secretive, `
metadata.annotations.note: added [secret]
spec.containers[proxy]: added {"args":["[secret]"],"command":["[secret]","[secret]","[secret]"],"image":"proxy:1","livenessProb...
spec.containers[pulumi-workflow].env[EMPTY]: added {"name":"EMPTY"}
spec.containers[pulumi-workflow].env[PASSWORD]: added {"name":"PASSWORD","value":"[secret]"}
`},
		"mappings and lists": {`{"metadata": {"labels": {"example.com/team": "platform"}}, "spec": {
			"enableServiceLinks": true, "tolerations": [{"operator": "Exists"}], "nodeSelector": {"disk": "ssd"},
			"containers": [{"name": "pulumi-workflow", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": 2}}}],
			"volumes": [{"name": "cache", "emptyDir": {}}]}}`, `
metadata.labels[example.com/team]: added platform
spec.containers[pulumi-workflow].ports[80]: added {"containerPort":80}
spec.containers[pulumi-workflow].resources.limits.cpu: added 2
spec.enableServiceLinks: false -> true
spec.nodeSelector.disk: added ssd
spec.tolerations: added [{"operator":"Exists"}]
spec.volumes[cache]: added {"emptyDir":{},"name":"cache"}
`},
		"what is restored": {`{"metadata": {"name": "mine"}, "spec": {"restartPolicy": "Always"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := TemplateChanges(pooled(c.template), previewOptions)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(c.want, "\n"), lines(changes)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	from := pooled(`{"spec": {"initContainers": [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}],
		"containers": [{"name": "pulumi-workflow", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
			{"name": "old", "image": "o"}]}}`)
	from.Tuning.Place.Kubernetes.CPU = "1"
	to := pooled(`{"spec": {"initContainers": [{"name": "b", "image": "b"}, {"name": "a", "image": "a"}],
		"containers": [{"name": "pulumi-workflow", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}]}]}}`)
	to.Tuning.Place.Kubernetes.CPU = "2"
	to.Name, to.Identity.Service, to.Identity.Namespace, to.Generation = "other", "https://other.example.com", "", 9
	changes, err := Changes(from, to, previewOptions)
	if err != nil {
		t.Fatal(err)
	}
	want := `metadata.namespace: removed jobs
spec.containers[old]: removed {"image":"o","name":"old","resources":{}}
spec.containers[pulumi-workflow].env[A].value: [secret] (changed)
spec.containers[pulumi-workflow].resources.requests.cpu: 1 -> 2
spec.initContainers[pulumi-workflow-prepare].resources.requests.cpu: 1 -> 2
spec.initContainers[*].name: ["pulumi-workflow-prepare","a","b"] -> ["pulumi-workflow-prepare","b","a"]
`
	if diff := cmp.Diff(want, lines(changes)); diff != "" {
		t.Error(diff)
	}
	if changes, err := Changes(from, from, previewOptions); len(changes) > 0 || err != nil {
		t.Errorf("a pool and itself: %v, %v", changes, err)
	}
	to = pooled(`{"spec": {"containers": null}}`)
	if _, err := Changes(from, to, previewOptions); err == nil {
		t.Error("no error for a template that does not fit")
	}
}

// leaf is a value in a document that is neither a mapping nor a list.
type leaf struct {
	path string
	set  func(any)
}

// leaves returns the leaves below a value. The path of an element of a list is that
// of the list.
func leaves(path string, value any, set func(any)) (all []leaf) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			all = append(all, leaves(at(path, key), inner, func(v any) { value[key] = v })...)
		}
	case []any:
		for i, inner := range value {
			all = append(all, leaves(path, inner, func(v any) { value[i] = v })...)
		}
	default:
		all = append(all, leaf{path, set})
	}
	return all
}

// TestDocumentChanges changes one value after another of a Pod and expects that
// each change is named, by a path that begins as that of the value does.
func TestDocumentChanges(t *testing.T) {
	whole := `{"metadata": {"labels": {"a/b": "c"}}, "spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b"]}],
		"tolerations": [{"key": "a"}, {"key": "b"}], "containers": [{"name": "proxy", "image": "p", "args": ["x"],
			"env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 53, "protocol": "UDP"}],
			"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
		"volumes": [{"name": "cache", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}}`
	fresh := func() Document {
		document, err := Preview(pooled(whole), "image", previewOptions)
		if err != nil {
			t.Fatal(err)
		}
		return document
	}
	paths := leaves("", map[string]any(fresh()), nil)
	if len(paths) < 50 {
		t.Fatalf("a Pod has %d values", len(paths))
	}
	slices.SortFunc(paths, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
	unnamed := func(path string) string { // without the names of elements
		for {
			before, rest, found := strings.Cut(path, "[")
			_, after, closed := strings.Cut(rest, "]")
			if !found || !closed {
				return path
			}
			path = before + after
		}
	}
	for _, one := range paths {
		document, changed := fresh(), fresh()
		for _, l := range leaves("", map[string]any(changed), nil) {
			if l.path == one.path {
				l.set("changed")
			}
		}
		changes := document.Changes(changed)
		if len(changes) == 0 || !slices.ContainsFunc(changes, func(c Change) bool {
			return strings.HasPrefix(unnamed(one.path), strings.TrimSuffix(unnamed(c.Path), "."+"name"))
		}) {
			t.Errorf("%s: changes %v", one.path, changes)
		}
	}
}

// FuzzChanges compares the Pods of two templates: a Pod does not differ from
// itself, differing Pods have a change, and the way back names the same paths.
func FuzzChanges(f *testing.F) {
	f.Add(`{}`, secretive)
	f.Add(`{"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}}`, `{"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}`)
	f.Add(`{"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}`, `{"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}`)
	f.Add(`{"metadata": {"labels": {"": "a", "a.b": "c"}}}`, `{"metadata": {"finalizers": ["a/b"]}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		from, err := Preview(pooled(a), "i", previewOptions)
		if err != nil {
			return
		}
		to, err := Preview(pooled(b), "i", previewOptions)
		if err != nil {
			return
		}
		forth, back := from.Changes(to), to.Changes(from)
		if (len(forth) == 0) != reflect.DeepEqual(from, to) {
			t.Errorf("%q to %q: changes %v", a, b, forth)
		}
		if len(from.Changes(from)) > 0 {
			t.Errorf("%q differs from itself", a)
		}
		reversed := make([]Change, len(back))
		for i, c := range back {
			reversed[i] = Change{Path: c.Path, From: c.To, To: c.From}
		}
		if !reflect.DeepEqual(append([]Change{}, forth...), reversed) {
			t.Errorf("%q to %q:\n%s\nand back:\n%s", a, b, lines(forth), lines(back))
		}
		for _, c := range forth {
			if text := c.String(); strings.ContainsAny(text, "\n\r") || text == "" {
				t.Errorf("%q to %q: %q", a, b, text)
			}
		}
	})
}

// TestChangeString draws values at random and expects one line for each change.
func TestChangeString(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000 {
		text := make([]rune, random.IntN(300))
		for i := range text {
			text[i] = rune(random.IntN(0x2fff))
		}
		line := Change{Path: "spec.hostname", From: nil, To: string(text)}.String()
		if strings.ContainsAny(line, "\n\r\x00") || len(line) > len("spec.hostname: added ")+longestValue {
			t.Fatalf("%q", line)
		}
	}
}
