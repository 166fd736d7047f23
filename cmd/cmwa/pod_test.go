package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	sigsjson "sigs.k8s.io/json"

	"github.com/cmwa-project/cmwa/cmd/cli"
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
	code, stdout, stderr := commandLine(nil, "pod", "--job-image", "registry.example.com/job:1", file)
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, stderr %q", code, stderr)
	}
	if strings.Contains(stdout, "hunter2") {
		t.Errorf("the output shows a secret:\n%s", stdout)
	}
	var data any
	if err := yaml.Unmarshal([]byte(stdout), &data); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}

	// The output is a Pod that the API server can read.
	var pod corev1.Pod
	if wrong, err := sigsjson.UnmarshalStrict(text, &pod); err != nil || len(wrong) > 0 {
		t.Fatalf("%v, %v", wrong, err)
	}
	main := pod.Spec.Containers[0]
	if pod.Namespace != "jobs" || pod.Spec.NodeSelector["disk"] != "ssd" || main.Name != "pulumi-workflow" ||
		main.Image != "registry.example.com/job:1" || main.Resources.Requests.Cpu().String() != "500m" ||
		pod.Spec.InitContainers[0].Image != agentImage+cli.Version() {
		t.Errorf("the Pod is\n%s", stdout)
	}

	// The JSON output has the same content, and each run prints the same output.
	for _, flags := range [][]string{{"--format", "json"}, {"-o", "json"}, {"-o=json"}} {
		code, document, stderr := commandLine(nil, append(append([]string{"pod", file}, flags...), "--job-image",
			"registry.example.com/job:1")...)
		var same any
		if err := json.Unmarshal([]byte(document), &same); err != nil || code != 0 || stderr != "" {
			t.Fatalf("%v: exit code %d, stderr %q, %v", flags, code, stderr, err)
		}
		var want any
		_ = json.Unmarshal(text, &want) // it was marshalled above
		if diff := cmp.Diff(want, same); diff != "" {
			t.Errorf("%v: YAML -, JSON +:\n%s", flags, diff)
		}
	}
	if _, again, _ := commandLine(nil, "pod", "--job-image", "registry.example.com/job:1", file); again != stdout {
		t.Error("a second run prints another Pod")
	}

	// The image that the environment variable names overrides that of the job.
	environ := []string{"PULUMI_DEPLOY_OVERRIDE_IMAGE_REFERENCE=mirror.example.com/job:2"}
	_, stdout, _ = commandLine(environ, "pod", file, "--job-image", "other")
	if !strings.Contains(stdout, "image: mirror.example.com/job:2\n") {
		t.Errorf("the image is not that of the environment variable:\n%s", stdout)
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
			code, stdout, stderr := commandLine(nil, args...)
			if code != 0 || strings.Contains(stdout+stderr, "s3cr3t") {
				t.Errorf("exit code %d, want 0 and no secret: %s%s", code, stdout, stderr)
			}
			for _, name := range shown {
				if !strings.Contains(stdout, name) {
					t.Errorf("%s is not shown:\n%s", name, stdout)
				}
			}
		})
	}
	t.Run("plan and vet", func(t *testing.T) {
		other := fileOf(t, "other.yaml", strings.ReplaceAll(secretPool, "s3cr3t", "0th3r-s3cr3t"))
		_, plan, stderr := commandLine(nil, "plan", file, other)
		_, vet, more := commandLine(nil, "vet", "--pod", file)
		if all := plan + stderr + vet + more; strings.Contains(all, "s3cr3t") || strings.Count(plan, "(changed)") < 8 {
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
		"template of the manifest": {manifest("pulumi-workflow-agent.yaml",
			"token_file: /a\ndeploy_target: kubernetes\n") + "---\n" +
			manifest("worker-pod.json", workerPod), nil, 0, "disk: ssd", ""},
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
		"unknown flag":   {onePool, []string{"--image", "x"}, 2, "", "unknown flag --image: see cmwa pod --help"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := commandLine(nil, append([]string{
				"pod", fileOf(t, "agent.yaml", c.content),
			}, c.args...)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) ||
				c.stderr == "" && stderr != "" || c.stdout == "" && stdout != "" {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, stderr, stdout)
			}
		})
	}
	if code, _, stderr := commandLine(nil, "pod", filepath.Join(t.TempDir(), "none.yaml")); code != exitUnread ||
		!strings.Contains(stderr, "there is no such file") {
		t.Errorf("a missing file: exit code %d, stderr %q", code, stderr)
	}
}

func TestPlanTellsWhatChangesInPods(t *testing.T) {
	before := fileOf(t, "old.yaml", onePool)
	after := fileOf(t, "new.yaml",
		strings.NewReplacer("500m", `"2"`, "hunter2", "hunter3", "{disk: ssd}", "{}").Replace(onePool))
	code, stdout, stderr := commandLine(nil, "plan", before, after)
	want := `pool default: Pods of the next jobs
  spec.containers[pulumi-workflow].env[PASSWORD].value: [secret] (changed)
  spec.containers[pulumi-workflow].resources.requests.cpu: 500m -> 2
  spec.initContainers[pulumi-workflow-prepare].resources.requests.cpu: 500m -> 2
  spec.nodeSelector.disk: removed ssd
`
	if code != exitChanges || !strings.HasSuffix(stdout, want) || stderr != "" {
		t.Errorf("exit code %d, stderr %q, and\n%s", code, stderr, stdout)
	}

	code, stdout, _ = commandLine(nil, "plan", "--format", "json", before, after)
	var document planDocument
	if err := json.Unmarshal([]byte(stdout), &document); err != nil || code != exitChanges ||
		len(document.Reloads) != 1 {
		t.Fatalf("exit code %d, %v: %s", code, err, stdout)
	}
	changes := document.Reloads[0].Pod
	if len(changes) != 4 || strings.Contains(stdout, "hunter") ||
		!cmp.Equal(changes[1],
			patch.Change{Path: "spec.containers[pulumi-workflow].resources.requests.cpu", From: "500m", To: "2"}) {
		t.Errorf("%s", stdout)
	}

	// Pools with the same changes share a paragraph. A pool that does not run Pods has no
	// paragraph.
	top := "kubernetes: {cpu: 1}\n"
	after = fileOf(t, "new.yaml", top+threePools)
	before = fileOf(t, "old.yaml", threePools)
	if _, stdout, _ := commandLine(nil, "plan", before, after); strings.Count(stdout, "Pods of the next jobs") != 1 ||
		!strings.Contains(stdout, "pools a, b: Pods of the next jobs\n") {
		t.Errorf("%s", stdout)
	}
	if _, stdout, _ := commandLine(nil, "plan", before, fileOf(t, "new.yaml", threePools+
		"polling_interval: 1m\n")); strings.Contains(stdout, "Pods") {
		t.Errorf("a change that affects no Pod is printed as a change of Pods:\n%s", stdout)
	}
}

func TestVetTellsWhatATemplateChanges(t *testing.T) {
	file, template := fileOf(t, "agent.yaml", onePool), fileOf(t, "worker-pod.json", workerPod)
	if code, stdout, stderr := commandLine(nil, "vet", file, template); code != 0 || stdout+stderr != "" {
		t.Fatalf("without --pod: exit code %d, %q, %q", code, stdout, stderr)
	}
	pools := fileOf(t, "pools.yaml", threePools)
	code, stdout, stderr := commandLine(nil, "vet", "--pod", file, template, pools)
	want := file + `: pool default: the template changes the Pod of a job
  spec.containers[pulumi-workflow].env[PASSWORD]: added {"name":"PASSWORD","value":"[secret]"}
  spec.nodeSelector.disk: added ssd
` + template + `: pool default: the template changes the Pod of a job
  spec.nodeSelector.disk: added ssd
` + pools + `: pool a: the template changes the Pod of a job
  spec.hostname: added a
` + pools + `: pool b: no template changes the Pod of a job
`
	if diff := cmp.Diff(want, stdout); diff != "" || code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q:\n%s", code, stderr, diff)
	}

	code, stdout, _ = commandLine(nil, "vet", "--pod", "--format", "json", file)
	var document vetDocument
	if err := json.Unmarshal([]byte(stdout), &document); err != nil || code != 0 || document.Version != 1 ||
		len(document.Pods) != 1 ||
		document.Pods[0].Pool != "default" || len(document.Pods[0].Changes) != 2 ||
		strings.Contains(stdout, "hunter2") {
		t.Errorf("exit code %d, %v: %s", code, err, stdout)
	}

	broken := fileOf(t, "broken.yaml", onePool+"        imge: x\n")
	if code, stdout, _ := commandLine(nil, "vet", "--pod", broken); code != 1 ||
		strings.Contains(stdout, "changes the Pod") {
		t.Errorf("a template with a mistake: exit code %d, %s", code, stdout)
	}
	if code, _, stderr := commandLine(nil, "vet", "--pod", "--format", "sarif", file); code != 2 ||
		!strings.Contains(stderr, "--pod needs --format text or json") {
		t.Errorf("SARIF: exit code %d, %s", code, stderr)
	}
}
