package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	sigsjson "sigs.k8s.io/json"

	"github.com/cmwa-project/cmwa/runtime/kube/patch"
)

// onePool is a configuration whose only pool runs jobs as Pods. The Pod template contains a
// secret.
const onePool = `token_file: /not/on/this/machine
deploy_target: kubernetes
kubernetes: {namespace: jobs, cpu: 500m}
pod_template:
  spec:
    nodeSelector: {disk: ssd}
    containers:
      - name: pulumi-workflow
        env: [{name: PASSWORD, value: hunter2}]
`

// threePools is a configuration with two pools that run jobs as Pods, and one that does not.
const threePools = `pools:
  - {name: a, token_file: /a, deploy_target: kubernetes, pod_template: {spec: {hostname: a}}}
  - {name: b, token_file: /b, deploy_target: kubernetes}
  - {name: c, token_file: /c}
`

// workerPod is a Pod template such as the Deployment of Pulumi's own agent mounts as
// worker-pod.json.
const workerPod = `{"spec": {"nodeSelector": {"disk": "ssd"}}}`

// manifest returns a ConfigMap with one key.
func manifest(key, content string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  " + key + ": |\n    " +
		strings.ReplaceAll(strings.TrimSpace(content), "\n", "\n    ") + "\n"
}

func TestPodPrintsWhatAJobGets(t *testing.T) {
	file := fileOf(t, "agent.yaml", onePool)
	args := []string{"pod", "--job-image", "registry.example.com/job:1", file}
	got := cmwa(nil, args...)
	if got.code != 0 || got.stderr != "" || strings.Contains(got.stdout, "hunter2") {
		t.Fatalf("want no secret: %+v", got)
	}
	var want any
	noError(t, yaml.Unmarshal([]byte(got.stdout), &want))
	text, err := json.Marshal(want)
	noError(t, err)

	// The output is a Pod that the API server can read.
	var pod corev1.Pod
	if wrong, err := sigsjson.UnmarshalStrict(text, &pod); err != nil || len(wrong) > 0 {
		t.Fatalf("%v, %v", wrong, err)
	}
	main := pod.Spec.Containers[0]
	if pod.Namespace != "jobs" || pod.Spec.NodeSelector["disk"] != "ssd" || main.Name != "pulumi-workflow" ||
		main.Image != "registry.example.com/job:1" || main.Resources.Requests.Cpu().String() != "500m" ||
		pod.Spec.InitContainers[0].Image != "example" { // the image of the agent's Pod
		t.Errorf("the Pod is\n%s", got.stdout)
	}

	// The JSON output has the same content, and each run prints the same output.
	decode(t, text, &want)
	for _, flags := range [][]string{{"--format", "json"}, {"-o", "json"}, {"-o=json"}} {
		document := cmwa(nil, append(slices.Clone(args), flags...)...)
		var same any
		decode(t, []byte(document.stdout), &same)
		if diff := cmp.Diff(want, same); diff != "" || document.code != 0 || document.stderr != "" {
			t.Errorf("%v: exit code %d, stderr %q, YAML -, JSON +:\n%s", flags, document.code, document.stderr, diff)
		}
	}
	if again := cmwa(nil, args...); again != got {
		t.Error("a second run prints another Pod")
	}

	// The image that the environment variable names overrides that of the job.
	environ := []string{"PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE=mirror.example.com/job:2"}
	if got := cmwa(environ, args...); !strings.Contains(got.stdout, "image: mirror.example.com/job:2\n") {
		t.Errorf("the image is not that of the environment variable:\n%s", got.stdout)
	}
}

func TestPodOfAStack(t *testing.T) {
	file := fileOf(t, "agent.yaml", onePool+`pod_template_rules:
  - {match: {organization: acme, project: web-*, stack: prod, operation: update}, patch: {spec: {nodeSelector: {a: b}}}}
`)
	of := func(project string) []string {
		return []string{
			"pod", "--organization", "acme", "--project", project, "--stack", "prod", "--operation", "update", file,
		}
	}
	for _, c := range []struct {
		args []string
		want bool
	}{{of("web-shop"), true}, {of("shop"), false}, {[]string{"pod", file}, false}} {
		got := cmwa(nil, c.args...)
		changed := strings.Contains(got.stdout, "    a: b\n")
		if got.code != 0 || got.stderr != "" || changed != c.want {
			t.Errorf("%v: the rule applies: %v, want %v: %+v", c.args, changed, c.want, got)
		}
	}
}

// secretPool is a configuration with a secret, or a text that starts with shown, in each place of
// a Pod template where a secret may be.
const secretPool = `token_file: /not/on/this/machine
deploy_target: kubernetes
pod_template:
  metadata:
    annotations:
      vault.example.com/key: s3cr3t
      controller.kubernetes.io/pod-deletion-cost: "-4711"
    labels: {example.com/team: shown-label}
  spec:
    dnsConfig: {options: [{name: shown-option, value: s3cr3t}]}
    initContainers:
      - {name: shown-init, image: shown-image, command: [sh, -c, s3cr3t], args: [--password, s3cr3t]}
    containers:
      - name: pulumi-workflow
        env: [{name: SHOWN_NAME, value: s3cr3t}, {name: B, valueFrom: {secretKeyRef: {name: shown-secret, key: k}}}]
        livenessProbe:
          httpGet: {path: "/shown-path?key=s3cr3t", port: 80, httpHeaders: [{name: shown-header, value: s3cr3t}]}
        lifecycle: {preStop: {exec: {command: [notify, s3cr3t]}}}
      - {name: shown-side, image: a, workingDir: /pul-s3cr3t}
    volumes:
      - {name: a, csi: {driver: shown-driver, volumeAttributes: {password: s3cr3t}}}
      - {name: b, flexVolume: {driver: d, options: {password: s3cr3t}}}
`

func TestPodMasksWhatConfigMasks(t *testing.T) {
	file := fileOf(t, "agent.yaml", secretPool)
	shown := regexp.MustCompile(`shown-\w+|SHOWN_NAME|4711`).FindAllString(secretPool, -1)
	for _, args := range [][]string{
		{"config", "--config", file}, {"config", "--config", file, "--origin"},
		{"config", "--config", file, "--format", "json"}, {"pod", file}, {"pod", "--format", "json", file},
	} {
		t.Run(args[0], func(t *testing.T) {
			got := cmwa(nil, args...)
			if got.code != 0 || strings.Contains(got.stdout+got.stderr, "s3cr3t") {
				t.Errorf("want exit code 0 and no secret: %+v", got)
			}
			for _, name := range shown {
				if !strings.Contains(got.stdout, name) {
					t.Errorf("%s is not shown:\n%s", name, got.stdout)
				}
			}
		})
	}
	t.Run("plan and vet", func(t *testing.T) {
		other := fileOf(t, "other.yaml", strings.ReplaceAll(secretPool, "s3cr3t", "0th3r-s3cr3t"))
		plan, vet := cmwa(nil, "plan", file, other), cmwa(nil, "vet", "--pod", file)
		if all := plan.stdout + plan.stderr + vet.stdout + vet.stderr; strings.Contains(all, "s3cr3t") ||
			strings.Count(plan.stdout, "(changed)") < 8 {
			t.Errorf("want every changed secret as a mark:\n%s", all)
		}
	})
}

func TestPodChoosesThePool(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		args    []string
		code    int
		stdout  string
		stderr  string
	}{
		"the only one":       {onePool, nil, 0, "disk: ssd", ""},
		"by name":            {threePools, []string{"--pool", "a"}, 0, "hostname: a", ""},
		"without a template": {threePools, []string{"--pool", "b"}, 0, "cmwa.pool-name: b", ""},
		"several":            {threePools, nil, 2, "", "several pools run Pods: name one with --pool: a, b"},
		"another target": {
			threePools, []string{"--pool", "c"}, 2, "", `there is no pool "c" that runs Pods: the pools are a, b`,
		},
		"none":                 {"token_file: /a\n", nil, 1, "", "no pool has deploy_target kubernetes"},
		"of a manifest":        {manifest("pulumi-workflow-agent.yaml", onePool), nil, 0, "disk: ssd", ""},
		"of a template":        {workerPod, nil, 0, "disk: ssd", ""},
		"of packaged template": {manifest("worker-pod.json", workerPod), nil, 0, "disk: ssd", ""},
		"template of the manifest": {
			manifest("pulumi-workflow-agent.yaml", "token_file: /a\ndeploy_target: kubernetes\n") + "---\n" +
				manifest("worker-pod.json", workerPod), nil, 0, "disk: ssd", "",
		},
		"manifest without either": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", nil, 1, "",
			"no ConfigMap or Secret of this file contains",
		},
		"mistake": {
			onePool + "        imge: x\n", nil, 1, "",
			"agent.yaml:10:9: pod_template.spec.containers.0.imge: unknown key",
		},
		"mistake in a manifest": {
			manifest("worker-pod.json", `{"spec": {"contaners": []}}`), nil, 1, "",
			"agent.yaml:6:15: spec.contaners: unknown key",
		},
		"two files":      {onePool, []string{"other.yaml"}, 2, "", "usage: cmwa pod "},
		"unknown format": {onePool, []string{"-o", "toml"}, 2, "", "-o must be one of yaml, json"},
	} {
		t.Run(name, func(t *testing.T) {
			got := cmwa(nil, append([]string{"pod", fileOf(t, "agent.yaml", c.content)}, c.args...)...)
			if got.code != c.code ||
				!strings.Contains(got.stdout, c.stdout) || c.stdout == "" && got.stdout != "" ||
				!strings.Contains(got.stderr, c.stderr) || c.stderr == "" && got.stderr != "" {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := cmwa(nil, "pod", filepath.Join(t.TempDir(), "none.yaml")); got.code != exitUnread ||
		!strings.Contains(got.stderr, "there is no such file") {
		t.Errorf("a missing file: %+v", got)
	}
}

func TestPlanTellsWhatChangesInPods(t *testing.T) {
	before := fileOf(t, "old.yaml", onePool)
	after := fileOf(t, "new.yaml",
		strings.NewReplacer("500m", `"2"`, "hunter2", "hunter3", "{disk: ssd}", "{}").Replace(onePool))
	got := cmwa(nil, "plan", before, after)
	want := `pool default: Pods of the next jobs
  spec.containers[pulumi-workflow].env[PASSWORD].value: [secret] (changed)
  spec.containers[pulumi-workflow].resources.requests.cpu: 500m -> 2
  spec.initContainers[pulumi-workflow-prepare].resources.requests.cpu: 500m -> 2
  spec.nodeSelector.disk: removed ssd
`
	if got.code != exitChanges || !strings.HasSuffix(got.stdout, want) || got.stderr != "" {
		t.Errorf("%+v", got)
	}

	got = cmwa(nil, "plan", "--format", "json", before, after)
	var document planDocument
	decode(t, []byte(got.stdout), &document)
	if got.code != exitChanges || len(document.Reloads) != 1 || strings.Contains(got.stdout, "hunter") {
		t.Fatalf("%+v", got)
	}
	cpu := patch.Change{Path: "spec.containers[pulumi-workflow].resources.requests.cpu", From: "500m", To: "2"}
	if changes := document.Reloads[0].Pod; len(changes) != 4 || !cmp.Equal(changes[1], cpu) {
		t.Errorf("%+v", got)
	}

	// Pools with the same changes share a paragraph. A pool that does not run Pods has no
	// paragraph.
	before = fileOf(t, "old.yaml", threePools)
	got = cmwa(nil, "plan", before, fileOf(t, "new.yaml", "kubernetes: {cpu: 1}\n"+threePools))
	if strings.Count(got.stdout, "Pods of the next jobs") != 1 ||
		!strings.Contains(got.stdout, "pools a, b: Pods of the next jobs\n") {
		t.Errorf("%+v", got)
	}
	got = cmwa(nil, "plan", before, fileOf(t, "new.yaml", threePools+"polling_interval: 1m\n"))
	if strings.Contains(got.stdout, "Pods") {
		t.Errorf("a change that affects no Pod is printed as a change of Pods:\n%s", got.stdout)
	}
}

func TestVetTellsWhatATemplateChanges(t *testing.T) {
	file, template := fileOf(t, "agent.yaml", onePool), fileOf(t, "worker-pod.json", workerPod)
	if got := cmwa(nil, "vet", file, template); got != (output{}) {
		t.Fatalf("without --pod: %+v", got)
	}
	pools := fileOf(t, "pools.yaml", threePools)
	got := cmwa(nil, "vet", "--pod", file, template, pools)
	want := file + `: pool default: the template changes the Pod of a job
  spec.containers[pulumi-workflow].env[PASSWORD]: added {"name":"PASSWORD","value":"[secret]"}
  spec.nodeSelector.disk: added ssd
` + template + `: pool default: the template changes the Pod of a job
  spec.nodeSelector.disk: added ssd
` + pools + `: pool a: the template changes the Pod of a job
  spec.hostname: added a
` + pools + `: pool b: no template changes the Pod of a job
`
	if diff := cmp.Diff(want, got.stdout); diff != "" || got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d, stderr %q:\n%s", got.code, got.stderr, diff)
	}

	got = cmwa(nil, "vet", "--pod", "--format", "json", file)
	var document vetDocument
	decode(t, []byte(got.stdout), &document)
	if got.code != 0 || document.Version != 1 || len(document.Pods) != 1 || document.Pods[0].Pool != "default" ||
		len(document.Pods[0].Changes) != 2 || strings.Contains(got.stdout, "hunter2") {
		t.Errorf("%+v", got)
	}

	broken := fileOf(t, "broken.yaml", onePool+"        imge: x\n")
	if got := cmwa(nil, "vet", "--pod", broken); got.code != 1 || strings.Contains(got.stdout, "changes the Pod") {
		t.Errorf("a template with a mistake: %+v", got)
	}
	if got := cmwa(nil, "vet", "--pod", "--format", "sarif", file); got.code != 2 ||
		!strings.Contains(got.stderr, "--pod needs --format text or json") {
		t.Errorf("SARIF: %+v", got)
	}
}
