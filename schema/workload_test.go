package schema_test

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// sidecar is a Secret and a Deployment with a Docker engine in a second container. All
// settings are in variables. There is no ConfigMap.
const sidecar = `apiVersion: v1
kind: Secret
metadata: {name: agent-secret}
data:
  PULUMI_AGENT_TOKEN: cHVsLWE=
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: agent-pool}
spec:
  template:
    spec:
      containers:
      - name: agent
        env:
        - name: DOCKER_HOST
          value: tcp://localhost:2375
        - name: PULUMI_AGENT_SHARED_VOLUME_DIRECTORY
          value: /mnt/work
        - name: PULUMI_AGENT_TOKEN
          valueFrom: {secretKeyRef: {name: agent-secret, key: PULUMI_AGENT_TOKEN}}
        - name: PULUMI_AGENT_NUM_CPUS
        - name: PULUMI_AGENT_MEM_QUANTITY
          value: ""
        volumeMounts: [{mountPath: /mnt/work, name: work}]
      - name: dind
        image: docker:dind
        securityContext: {privileged: true}
      volumes:
      - name: work
        emptyDir: {}
`

// fromSecret is the note about the token in [sidecar].
const fromSecret = "m.yaml:20:17: PULUMI_AGENT_TOKEN: the value is not known here; it is from the key " +
	"PULUMI_AGENT_TOKEN of the Secret agent-secret"

// misspelt is [sidecar] with a typo in the name of a variable.
var misspelt = strings.Replace(sidecar, "SHARED_VOLUME_DIRECTORY", "SHARED_VOLUM_DIRECTORY", 1)

func TestVetWorkloads(t *testing.T) {
	pod := func(lines ...string) string {
		return "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: agent\n    env:\n    - " +
			strings.Join(lines, "\n    - ") + "\n"
	}
	for name, test := range map[string]struct{ file, want string }{
		"a Deployment that sets everything in variables": {sidecar, fromSecret},
		"a misspelt variable": {misspelt,
			"m.yaml:18:17: PULUMI_AGENT_SHARED_VOLUM_DIRECTORY: no key has this variable\n" +
				"  hint: did you mean PULUMI_AGENT_SHARED_VOLUME_DIRECTORY?\n" + fromSecret},
		"a wrong value": {strings.Replace(sidecar, "value: /mnt/work", "value: mnt/work", 1),
			"m.yaml:19:18: PULUMI_AGENT_SHARED_VOLUME_DIRECTORY: must be an absolute path\n" + fromSecret},
		"a pool without jobs": {pod(`{name: PULUMI_AGENT_LEASED_WORK, value: never}`,
			`{name: PULUMI_AGENT_ENABLED_WORKFLOW_TYPES, value: insights_scan}`),
			"m.yaml:8:58: PULUMI_AGENT_ENABLED_WORKFLOW_TYPES: the pool gets no jobs, because leased_work is never\n" +
				"  hint: add deployment, or remove leased_work"},
		"the image of the runner is not that of the agent": {strings.Replace(pod(
			`{name: PULUMI_AGENT_IMAGE, value: "pulumi/customer-managed-workflow-agent:latest"}`),
			"- name: agent", "- name: agent\n    image: registry.example.com/cmwa:1", 1),
			"m.yaml:8:41: PULUMI_AGENT_IMAGE: has no effect: Pods copy the runner from the image of this container\n" +
				"  hint: remove it, or set PULUMI_AGENT_KUBERNETES_IMAGE to use another image of the agent's release"},
		"the image of the runner is that of the agent": {strings.Replace(pod(
			`{name: PULUMI_AGENT_IMAGE, value: "registry.example.com/cmwa:1"}`),
			"- name: agent", "- name: agent\n    image: registry.example.com/cmwa:1", 1), ""},
		"a Pod of the agent": {pod(`{name: PULUMI_AGENT_LOG_LEVEL, value: loud}`),
			"m.yaml:7:45: PULUMI_AGENT_LOG_LEVEL: must be one of debug, info, warn, error"},
		"a Pod without variables is a template": {strings.Replace(pod(`{name: LOG_LEVEL, value: loud}`),
			"name: agent", "name: pulumi-workflow", 1), ""},
		"a value that names another variable": {
			pod(`{name: PULUMI_AGENT_SERVICE_URL, value: $(SCHEME)://$(HOST)}`),
			"m.yaml:7:14: PULUMI_AGENT_SERVICE_URL: the value is not known here; it is from other variables"},
		"a rule for two keys, with one in the manifest": {pod(`{name: PULUMI_AGENT_REQUEST_RETRY_WAIT, value: 10m}`),
			"m.yaml:7:54: PULUMI_AGENT_REQUEST_RETRY_WAIT: must not be longer than request_retry_max_wait, " +
				"which is 2m"},
		"a rule for two keys, with one from valueFrom": {pod(`{name: PULUMI_AGENT_REQUEST_RETRY_WAIT, value: 10m}`,
			`{name: PULUMI_AGENT_REQUEST_RETRY_MAX_WAIT, valueFrom: {configMapKeyRef: {name: a, key: b}}}`),
			"m.yaml:8:14: PULUMI_AGENT_REQUEST_RETRY_MAX_WAIT: the value is not known here; it is from the key b " +
				"of the ConfigMap a"},
		"a rule for two keys, and a mounted file": {
			pod(`{name: PULUMI_AGENT_REQUEST_RETRY_WAIT, value: 10m}`) +
				"  volumes: [{name: a, configMap: {name: agent}}]\n", ""},
		"variables of the service itself": {"apiVersion: apps/v1\nkind: Deployment\n" +
			"spec: {template: {spec: {containers: [{env: [{name: PULUMI_DEPLOY_DEFAULT_IMAGE_REFERENCE, value: " +
			"a}]}]}}}\n", "m.yaml: no ConfigMap or Secret of this file contains a configuration or a Pod " +
			"template, and no container has a variable of the agent\n" +
			"  hint: these keys are checked: pulumi-workflow-agent.yaml, " +
			"pulumi-deployment-agent.yaml, worker-pod.json, worker-pod.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			environ := map[string]string{"PULUMI_AGENT_LOG_FORMAT": "loud"}
			src := schema.Source{Path: "m.yaml", Content: []byte(test.file), Environ: environ}
			if got := schema.Vet(src).Error(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}

	t.Run("aliases that multiply variables are bounded", func(t *testing.T) {
		file := "apiVersion: v1\nkind: List\nitems:\n- &d\n  apiVersion: v1\n  kind: Pod\n  spec:\n    containers:\n" +
			"    - env:\n" + strings.Repeat("      - {name: PULUMI_AGENT_LOG_LEVEL, value: info}\n", 1000) +
			strings.Repeat("- *d\n", 900)
		problems := schema.Vet(schema.Source{Path: "m.yaml", Content: []byte(file)})
		if text := problems.Error(); !strings.Contains(text, "more than 20000 variables") {
			t.Errorf("no problem names the limit of variables: %.300s", text)
		}
	})
}

func TestVetAsAgent(t *testing.T) {
	src := schema.Source{Path: "m.yaml", Content: []byte(misspelt)}
	if vet, agent := schema.Vet(src), schema.VetAsAgent(src); len(vet.Errors()) != 1 || len(agent.Errors()) != 1 {
		t.Errorf("want one error for a misspelt variable in a manifest: vet %v, an agent %v", vet, agent)
	}
}

// settings is a ConfigMap with variables, and fromSettings a Deployment that refers to it.
const (
	settings = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  PULUMI_AGENT_DEPLOY_TARGET: kubernetes
  PULUMI_AGENT_MEM_QUANTITY: "7"
  PULUMI_AGENT_LOG_LEVEL: loud
  level: debug
`
	fromSettings = `apiVersion: apps/v1
kind: Deployment
metadata: {name: agent}
spec:
  template:
    spec:
      containers:
      - name: agent
        envFrom:
        - configMapRef: {name: settings}
        - configMapRef: {name: other}
        env:
        - name: PULUMI_AGENT_LOG_LEVEL
          valueFrom: {configMapKeyRef: {name: settings, key: level}}
        - name: PULUMI_AGENT_TOKEN
          valueFrom: {secretKeyRef: {name: agent, key: token}}
`
)

func TestConfigurationsVariables(t *testing.T) {
	const both = settings + "---\n" + fromSettings
	const file = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: file}\ndata:\n" +
		"  pulumi-workflow-agent.yaml: |\n    kubernetes: {memory: 2Gi, cpu: 500m}\n"
	const volumes = "      volumes: [{name: a, configMap: {name: file}}]\n"
	sources := func(t *testing.T, content string, neighbours ...string) []schema.Source {
		t.Helper()
		src := schema.Source{Path: "m.yaml", Content: []byte(content)}
		if len(neighbours) > 0 {
			all := []schema.Source{src}
			for _, n := range neighbours {
				all = append(all, schema.Source{Path: "neighbour.yaml", Content: []byte(n)})
			}
			src.Objects = schema.ReadObjects(all)
		}
		configurations, ok := schema.Configurations(src)
		if !ok {
			t.Fatal("the file has no manifests")
		}
		return configurations
	}
	for name, test := range map[string]struct {
		sources             []schema.Source
		memory, cpu, target string
	}{
		"of a ConfigMap":                        {sources(t, both), "7Gi", "", "kubernetes"},
		"of a ConfigMap in another file":        {sources(t, fromSettings, settings), "7Gi", "", "kubernetes"},
		"override the mounted file":             {sources(t, both+volumes+file), "7Gi", "500m", "kubernetes"},
		"override the file of another manifest": {sources(t, file, both+volumes), "7Gi", "500m", "kubernetes"},
		"of two ConfigMaps of one name":         {sources(t, both+"---\n"+settings), "", "", "docker"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(test.sources) != 1 {
				t.Fatalf("got %d configurations, want one", len(test.sources))
			}
			c, problems := schema.Load(test.sources[0])
			if c == nil {
				t.Fatal(problems)
			}
			pool := c.Pools[0]
			if pool.Kubernetes.Memory != test.memory || pool.Kubernetes.CPU != test.cpu ||
				pool.DeployTarget != test.target {
				t.Errorf("the pool has memory %s, cpu %s, target %s, want %s, %s, %s", pool.Kubernetes.Memory,
					pool.Kubernetes.CPU, pool.DeployTarget, test.memory, test.cpu, test.target)
			}
		})
	}

	t.Run("two containers with one file are two configurations", func(t *testing.T) {
		second := strings.Replace(fromSettings, "metadata: {name: agent}", "metadata: {name: second}", 1)
		second = strings.Replace(second, "key: level", "key: PULUMI_AGENT_MEM_QUANTITY", 1)
		all := sources(t, both+volumes+file+"---\n"+second+volumes)
		if len(all) != 2 {
			t.Errorf("got %d configurations, want 2", len(all))
		}
	})
	t.Run("are checked where their values are", func(t *testing.T) {
		wrong := strings.Replace(both, "level: debug", "level: loud", 1)
		got := schema.Vet(schema.Source{Path: "m.yaml", Content: []byte(wrong)}).Error()
		const want = "m.yaml:8:10: PULUMI_AGENT_LOG_LEVEL: must be one of debug, info, warn, error\n" +
			"m.yaml:20:11: envFrom: its variables are not known here; they are from the ConfigMap other\n" +
			"m.yaml:24:17: PULUMI_AGENT_TOKEN: the value is not known here; it is from the key token of the Secret agent"
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}
