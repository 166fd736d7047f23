package kube

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/patch"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// previewOptions are the options of an agent whose image has a version.
var previewOptions = Options{Image: "cmwa/cmwa:1", RunnerDirectory: runnerDirectory}

// poolWith returns a pool with a template.
func poolWith(template string) runtime.PoolSpec {
	return runtime.PoolSpec{
		Name: "main",
		Identity: runtime.Identity{
			Service: "https://api.example.com", Credentials: "token", Target: "kubernetes", Namespace: "jobs",
		},
		Tuning: runtime.Tuning{
			Token:    secret.New("the-token-of-the-pool"),
			Instance: runtime.InstanceSpec{Kubernetes: runtime.Kubernetes{Template: []byte(template)}},
		},
	}
}

// secretTemplate is a template with all fields that may be secret.
const secretTemplate = `{"metadata": {"annotations": {"note": "eyJhbGciOi.eyJzdWIi.x"}}, "spec": {
	"containers": [
		{"name": "pulumi-workflow", "env": [{"name": "PASSWORD", "value": "hunter2"}, {"name": "EMPTY", "value": ""}]},
		{"name": "proxy", "image": "proxy:1", "command": ["proxy", "--password", "hunter2"], "args": ["hunter2"],
			"livenessProbe": {"exec": {"command": ["check", "hunter2"]}}}]}}`

func TestPreview(t *testing.T) {
	t.Run("with a template", func(t *testing.T) {
		document, err := Preview(poolWith(secretTemplate), "pulumi/pulumi:3", runtime.Work{}, previewOptions)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "preview", document)
		text, _ := json.Marshal(document)
		for _, hidden := range []string{"hunter2", "eyJ", "the-token-of-the-pool"} {
			if strings.Contains(string(text), hidden) {
				t.Errorf("the document contains %s", hidden)
			}
		}
	})

	t.Run("document is the Pod that Start creates", func(t *testing.T) {
		spec := poolWith(`{"spec": {"nodeSelector": {"disk": "ssd"}}}`)
		document, err := Preview(spec, "pulumi/pulumi:3", runtime.Work{}, previewOptions)
		if err != nil {
			t.Fatal(err)
		}
		pod := newPod(t, exampleJob(spec, "pulumi/pulumi:3"))
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

	t.Run("invalid template", func(t *testing.T) {
		if _, err := Preview(poolWith(`{"spec": null}`), "i", runtime.Work{}, previewOptions); err == nil {
			t.Error("got no error for an invalid template")
		}
	})
}

// lines returns changes as text.
func lines(changes []patch.Change) string {
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
		"secret fields": {secretTemplate, `
metadata.annotations.note: added [secret]
spec.containers[proxy]: added {"args":["[secret]"],` +
			`"command":["[secret]","[secret]","[secret]"],"image":"proxy:1","livenessPro …
spec.containers[pulumi-workflow].env[EMPTY]: added {"name":"EMPTY"}
spec.containers[pulumi-workflow].env[PASSWORD]: added {"name":"PASSWORD","value":"[secret]"}
`},
		"mappings and lists": {`{"metadata": {"labels": {"example.com/team": "platform"}}, "spec": {
			"enableServiceLinks": true, "tolerations": [{"operator": "Exists"}], "nodeSelector": {"disk": "ssd"},
			"containers": [{"name": "pulumi-workflow", "ports": [{"containerPort": 80}],
				"resources": {"limits": {"cpu": 2}}}],
			"volumes": [{"name": "cache", "emptyDir": {}}]}}`, `
metadata.labels[example.com/team]: added platform
spec.containers[pulumi-workflow].ports[80]: added {"containerPort":80}
spec.containers[pulumi-workflow].resources.limits.cpu: added 2
spec.enableServiceLinks: false -> true
spec.nodeSelector.disk: added ssd
spec.tolerations: added [{"operator":"Exists"}]
spec.volumes[cache]: added {"emptyDir":{},"name":"cache"}
`},
		"restored fields": {`{"metadata": {"name": "mine"}, "spec": {"restartPolicy": "Always"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := TemplateChanges(poolWith(c.template), previewOptions)
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
	from := poolWith(`{"spec": {"initContainers": [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}],
		"containers": [{"name": "pulumi-workflow", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
			{"name": "old", "image": "o"}]}}`)
	from.Tuning.Instance.Kubernetes.Requests.CPU = "1"
	to := poolWith(`{"spec": {"initContainers": [{"name": "b", "image": "b"}, {"name": "a", "image": "a"}],
		"containers": [{"name": "pulumi-workflow",
			"env": [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}]}]}}`)
	to.Tuning.Instance.Kubernetes.Requests.CPU = "2"
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
		t.Errorf("a pool compared with itself: got %v, %v, want no changes", changes, err)
	}
	to = poolWith(`{"spec": {"containers": null}}`)
	if _, err := Changes(from, to, previewOptions); err == nil {
		t.Error("got no error for an invalid template")
	}
}
