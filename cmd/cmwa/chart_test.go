package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

const chartDirectory = "../../examples/chart"

// render runs helm template on the chart, and returns the manifests and the standard error of helm.
func render(t *testing.T, args ...string) (manifests, message string, err error) {
	t.Helper()
	return renderWith(t, helmVariable, args...)
}

// renderWith is render with the helm of this variable.
func renderWith(t *testing.T, helm string, args ...string) (manifests, message string, err error) {
	t.Helper()
	return try(t, helm, append([]string{"template", "release", chartDirectory, "--namespace", "pulumi"}, args...)...)
}

func TestChart(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/chart/*.values.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("there are %d files of values, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".values.yaml")
		t.Run(name+" passes helm lint", func(t *testing.T) {
			out := must(t, helmVariable, "lint", "--strict", chartDirectory, "--values", file)
			if strings.Contains(out, "[WARNING]") || strings.Contains(out, "[ERROR]") {
				t.Error(out)
			}
		})
		for _, helm := range []string{helm3Variable, helmVariable} {
			t.Run(name+" renders valid manifests with "+helm, func(t *testing.T) {
				got, message, err := renderWith(t, helm, "--values", file)
				if err != nil {
					t.Fatal(message)
				}
				// Only the empty lines at the end of a manifest differ between the two.
				wantGolden(t, strings.TrimSuffix(file, ".values.yaml")+".golden.yaml",
					regexp.MustCompile(`\n+(---\n|$)`).ReplaceAllString(got, "\n$1"))
				if kinds := checkManifests(t, got); !slices.Contains(kinds, "Deployment") {
					t.Errorf("the kinds are %v", kinds)
				}
			})
		}
	}
}

// TestChartGroup checks that the budget of jobs selects the group that the agent derives from its
// Deployment. A group that is too long for a label becomes a digest.
func TestChartGroup(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 63-len(".deployment.release-agent"))
	digest := sha256.Sum256([]byte(long + "n.deployment.release-agent"))
	for namespace, group := range map[string]string{
		"pulumi":   "pulumi.deployment.release-agent",
		long:       long + ".deployment.release-agent", // as long as a label may be
		long + "n": hex.EncodeToString(digest[:16]),
	} {
		manifests, message, err := render(t, "--namespace", namespace, "--set", "agent.token=pul-1")
		if err != nil || !strings.Contains(manifests, "cmwa.group: \""+group+"\"\n") {
			t.Errorf("namespace %s: the group %s is not selected: %v %s\n%s", namespace, group, err, message, manifests)
		}
	}
}

// TestChartInParent renders a chart that has this chart as a dependency with a condition: helm passes
// the value of the condition to this chart.
func TestChartInParent(t *testing.T) {
	t.Parallel()
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		parent := directoryOf(t, map[string]string{
			"Chart.yaml": "apiVersion: v2\nname: parent\nversion: 1.0.0\n" +
				"dependencies: [{name: cmwa, version: 0.1.0, condition: cmwa.enabled}]\n",
			"values.yaml": "cmwa: {enabled: " + enabled + ", agent: {token: pul-1}}\nglobal: {}\n",
		})
		noError(t, os.CopyFS(filepath.Join(parent, "charts", "cmwa"), os.DirFS(chartDirectory)))
		manifests, message, err := try(t, helmVariable, "template", "release", parent)
		if got := strings.Contains(manifests, "kind: Deployment"); err != nil || got != want {
			t.Errorf("enabled: %s: there is a Deployment: %t, %v\n%s", enabled, got, err, message)
		}
	}
}

// TestChartImageDigest renders a chart with the annotation that make release writes.
func TestChartImageDigest(t *testing.T) {
	t.Parallel()
	chart := t.TempDir()
	noError(t, os.CopyFS(chart, os.DirFS(chartDirectory)))
	file := filepath.Join(chart, "Chart.yaml")
	const line = "\nannotations:\n"
	released := strings.Replace(readText(t, file), line, line+"  cmwa/image-digest: sha256:1\n", 1)
	noError(t, os.WriteFile(file, []byte(released), 0o600))
	other := "sha256:" + strings.Repeat("2", 64)
	for values, want := range map[string]string{
		"image.repository=cmwa": "cmwa:0.1.0@sha256:1",
		"image.tag=1.2.3":       "registry.invalid/cmwa:1.2.3",
		"image.digest=" + other: "registry.invalid/cmwa@" + other,
	} {
		values = "agent.token=pul-1," + values
		manifests, message, err := try(t, helmVariable, "template", "release", chart, "--set", values)
		images := regexp.MustCompile(`image: "?([^"\n]*)`).FindAllStringSubmatch(manifests, -1)
		if len(images) == 0 || images[0][1] != want {
			t.Errorf("with %s the images are %q, want %s: %v %s", values, images, want, err, message)
		}
	}
}

// TestOpenShift checks that both installations leave fsGroup to the platform, and that the chart keeps
// the value of a user.
func TestOpenShift(t *testing.T) {
	t.Parallel()
	platform := []string{"--api-versions", "security.openshift.io/v1", "--set", "agent.token=pul-1"}
	k := kustomization{
		overlay: "plain", namespace: "other", tokens: map[string]string{"token": "pul-1"},
		components: []string{"openshift"},
	}
	for name, c := range map[string]struct {
		manifests func() string
		want      string
	}{
		"chart": {func() string {
			manifests, _, _ := render(t, platform...)
			return manifests
		}, ""},
		"chart with a value": {func() string {
			manifests, _, _ := render(t, append(platform, "--set", "podSecurityContext.fsGroup=7")...)
			return manifests
		}, "fsGroup: 7"},
		"component": {func() string { return must(t, kubectlVariable, "kustomize", k.write(t)) }, ""},
	} {
		manifests := c.manifests()
		if got := regexp.MustCompile(`fsGroup: \d+`).FindString(manifests); got != c.want ||
			!strings.Contains(manifests, "runAsNonRoot: true") {
			t.Errorf("%s: the manifests have %q, want %q:\n%s", name, got, c.want, manifests)
		}
	}

	// The Pods of DNS have another port than its Service.
	manifests, _, _ := render(t, append(platform, "--set", "networkPolicy.enabled=true,networkPolicy.egress=true")...)
	ports := fieldOf(t, manifests, "NetworkPolicy release-agent", ".spec.egress[0].ports[*].port")
	if ports != "53 53 5353 5353" {
		t.Errorf("the agent can connect to the ports %q for DNS", ports)
	}
}

// fieldOf returns a field of an object in manifests, as text or JSON. It is empty if there is no such field
// or object. The object is its kind and name; the path is a JSONPath.
func fieldOf(t *testing.T, manifests, object, path string) string {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var content map[string]any
		noError(t, yaml.Unmarshal([]byte(document), &content))
		metadata, _ := content["metadata"].(map[string]any)
		if kind, name, _ := strings.Cut(object, " "); content["kind"] != kind || metadata["name"] != name {
			continue
		}
		var found strings.Builder
		parser := jsonpath.New("field").AllowMissingKeys(true)
		noError(t, parser.Parse("{"+path+"}"))
		noError(t, parser.Execute(&found, content))
		return found.String()
	}
	return ""
}

func TestChartValues(t *testing.T) {
	t.Parallel()
	const (
		agent    = "Deployment release-agent"
		pod      = ".spec.template.spec"
		selected = `{"app.kubernetes.io/instance":"release","app.kubernetes.io/name":"customer-managed-workflow-agent"}`
		digest   = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		volume   = "deploymentStrategy: {type: Recreate}\npersistence: {enabled: true, size: 2Gi, storageClass: fast}"
		hpa      = "autoscaling: {enabled: true, minReplicas: 3, behavior: {scaleDown: {selectPolicy: Max}}}"
		secrets  = "global: {imagePullSecrets: [parent, {name: other}]}\nimagePullSecrets: [{name: other}, {name: own}]"
		monitor  = ": {enabled: true, scrapeTimeout: 5s, labels: {a: b}, relabelings: [{action: drop}], " +
			"metricRelabelings: [{action: keep}]}"
		endpoint = `[{"interval":"30s","metricRelabelings":[{"action":"keep"}],"path":"/metrics","port":"http",` +
			`"relabelings":[{"action":"drop"}],"scrapeTimeout":"5s"}]`
		egress = "networkPolicy: {enabled: true, egress: true, apiServerPorts: [6443], " +
			"extraEgress: [{ports: [{port: 3128}]}]}\nconfig: {service_url: 'http://localhost:8080', pools: " +
			"[{name: a, token_file: /a, service_url: 'https://b.example.com'}, {name: b, token_file: /b}]}"
	)
	for _, test := range []struct{ values, object, path, want string }{
		{"{}", agent, pod + ".containers[0].image", "registry.invalid/cmwa:0.1.0"},
		{"image: {digest: '" + digest + "'}", agent, pod + ".containers[0].image", "registry.invalid/cmwa@" + digest},
		{
			"global: {imageRegistry: b/}\nimage: {tag: latest, repository: cmwa, registry: a, digest: " + digest + "}",
			agent, pod + ".containers[0].image", "b/cmwa:latest@" + digest,
		},
		{secrets, agent, pod + ".imagePullSecrets", `[{"name":"parent"},{"name":"other"},{"name":"own"}]`},
		{secrets, "ServiceAccount release-agent-runner", ".imagePullSecrets",
			`[{"name":"parent"},{"name":"other"},{"name":"own"}]`},
		{"commonLabels: {team: a, app.kubernetes.io/instance: x}\npodLabels: {team: b}", agent,
			".spec.template.metadata.labels",
			strings.TrimSuffix(selected, "}") + `,"team":"b"}`},
		{"commonLabels: {team: a}", "PodDisruptionBudget release-agent-runner", ".metadata.labels.team", "a"},
		{"commonAnnotations: {a: b}", "Role release-agent", ".metadata.annotations", `{"a":"b"}`},
		{"commonAnnotations: {a: b}", agent, ".spec.template.metadata.annotations", `{"a":"b"}`},
		{"extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-x'}, data: {a: b}}]",
			"ConfigMap release-x", ".data", `{"a":"b"}`},
		{"agent: {extraEnvFrom: [{secretRef: {name: cloud}}]}", agent, pod + ".containers[0].envFrom",
			`[{"secretRef":{"name":"cloud"}}]`},

		// The replicas and their nodes.
		{"{}", agent, ".spec.replicas", "1"},
		{"replicaCount: null", agent, ".spec.replicas", ""},
		{hpa, agent, ".spec.replicas", ""},
		{hpa, "HorizontalPodAutoscaler release-agent", ".spec", `{"behavior":{"scaleDown":{"selectPolicy":"Max"}},` +
			`"maxReplicas":10,"minReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment",` +
			`"name":"release-agent"}}`},
		{yamlAbove(t, chartDirectory+"/README.md", "\nFor another autoscaler"), "HorizontalPodAutoscaler release-agent",
			".spec.metrics[*].pods.metric.name", "cmwa_pool_jobs"},
		{"{}", agent, pod + ".topologySpreadConstraints", `[{"labelSelector":{"matchLabels":` + selected + `},` +
			`"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway"}]`},
		{"topologySpreadConstraints: []", agent, pod + ".topologySpreadConstraints", ""},
		{"topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, " +
			"labelSelector: {matchLabels: {b: c}}}]", agent, pod + ".topologySpreadConstraints[0].labelSelector",
			`{"matchLabels":{"b":"c"}}`},
		{"priorityClassName: high", agent, pod + ".priorityClassName", "high"},
		{"runtimeClassName: gvisor", agent, pod + ".runtimeClassName", "gvisor"},
		{"hostAliases: [{ip: 10.0.0.1, hostnames: [a]}]", agent, pod + ".hostAliases",
			`[{"hostnames":["a"],"ip":"10.0.0.1"}]`},
		{"dnsPolicy: None\ndnsConfig: {nameservers: [10.0.0.2]}", agent, pod + ".dnsConfig",
			`{"nameservers":["10.0.0.2"]}`},
		{"dnsPolicy: None", agent, pod + ".dnsPolicy", "None"},
		{"revisionHistoryLimit: 0", agent, ".spec.revisionHistoryLimit", "0"},

		// The volume of the state directory. Another Pod, such as that of helm test, cannot lock it.
		{volume, "PersistentVolumeClaim release-agent", ".spec", `{"accessModes":["ReadWriteOnce"],` +
			`"resources":{"requests":{"storage":"2Gi"}},"storageClassName":"fast"}`},
		{volume, agent, pod + ".volumes[?(@.name=='agent-state')]",
			`{"name":"agent-state","persistentVolumeClaim":{"claimName":"release-agent"}}`},
		{volume, "Pod release-agent-doctor", ".spec.volumes[?(@.name=='agent-state')]",
			`{"emptyDir":{},"name":"agent-state"}`},
		{strings.Replace(volume, "size", "existingClaim: own, size", 1), agent,
			pod + ".volumes[*].persistentVolumeClaim", `{"claimName":"own"}`},
		{strings.Replace(volume, "size", "existingClaim: own, size", 1), "PersistentVolumeClaim release-agent",
			".metadata.name", ""},
		{"{}", "Pod release-agent-doctor", ".spec.containers[*].args", `["doctor"]`},
		{"sidecars: [{name: proxy, image: proxy}]", "Pod release-agent-doctor", ".spec.containers[*].name", "agent"},

		// Prometheus, and connections.
		{"serviceMonitor" + monitor, "ServiceMonitor release-agent", ".spec.endpoints", endpoint},
		{"podMonitor" + monitor, "PodMonitor release-agent", ".spec.podMetricsEndpoints", endpoint},
		{"podMonitor" + monitor, "PodMonitor release-agent", ".metadata.labels.a", "b"},
		{"podMonitor" + monitor, "PodMonitor release-agent", ".spec.selector.matchLabels",
			selected},
		{egress, "NetworkPolicy release-agent", ".spec.egress", `[{"ports":[{"port":53,"protocol":"UDP"},` +
			`{"port":53,"protocol":"TCP"}]},{"ports":[{"port":443},{"port":8080},{"port":6443}]},` +
			`{"ports":[{"port":3128}]}]`},
		{egress, "NetworkPolicy release-agent", ".spec.policyTypes", `["Ingress","Egress"]`},
		{"networkPolicy: {enabled: true}", "NetworkPolicy release-agent", ".spec.egress", ""},
	} {
		file := fileOf(t, "values.yaml", test.values) // helm splits names at commas, which a subtest's directory has
		t.Run(test.values+" "+test.path, func(t *testing.T) {
			manifests, message, err := render(t, "--set", "agent.token=pul-1", "--values", file)
			if err != nil {
				t.Fatal(message)
			}
			decodeManifests(t, manifests)
			if got := fieldOf(t, manifests, test.object, test.path); got != test.want {
				t.Errorf("%s %s\n got %s\nwant %s", test.object, test.path, got, test.want)
			}
		})
	}
}

// TestChartPodSecurity checks that the Pods of jobs get the same fields as in the overlay restricted, before
// the rules of the user, and that OpenShift chooses their user.
func TestChartPodSecurity(t *testing.T) {
	t.Parallel()
	type settings struct {
		Template map[string]any `json:"pod_template"`
		Rules    []struct {
			Patch map[string]any `json:"patch"`
		} `json:"pod_template_rules"`
		Pools []settings `json:"pools"`
	}
	var overlay settings
	noError(t, yaml.Unmarshal([]byte(readText(t, kustomizeDirectory+"/overlays/restricted/pulumi-workflow-agent.yaml")),
		&overlay))
	values := fileOf(t, "values.yaml", "agent: {token: pul-1}\njobs: {podSecurity: restricted}\n"+
		"workerNamespace: {create: true, name: jobs}\n"+
		"config:\n  pod_template: {spec: {priority: 2}}\n  pod_template_rules: [{patch: {spec: {priority: 3}}}]\n"+
		"  pools: [{name: a, token_file: /a, pod_template_rules: []}, {name: b, token_file: /b}]\n")
	for _, args := range [][]string{nil, {"--api-versions", "security.openshift.io/v1"}} {
		manifests, message, err := render(t, append(args, "--values", values)...)
		if err != nil {
			t.Fatal(message)
		}
		checkManifests(t, manifests)
		if args != nil {
			user := overlay.Template["spec"].(map[string]any)["securityContext"].(map[string]any)
			delete(user, "runAsUser")
			delete(user, "runAsGroup")
		}
		var got settings
		text := fieldOf(t, manifests, "ConfigMap release-agent", `.data.pulumi-workflow-agent\.yaml`)
		noError(t, yaml.Unmarshal([]byte(text), &got))
		if len(got.Rules) != 2 || len(got.Pools) != 2 || len(got.Pools[0].Rules) != 1 || got.Pools[1].Rules != nil {
			t.Fatalf("the configuration is %+v", got)
		}
		for _, rules := range []settings{got, got.Pools[0]} {
			if diff := cmp.Diff(overlay.Template, rules.Rules[0].Patch); diff != "" {
				t.Errorf("the rule differs from the overlay restricted:\n%s", diff)
			}
		}
		label := fieldOf(t, manifests, "Namespace jobs", `.metadata.labels.pod-security\.kubernetes\.io/enforce`)
		if label != "restricted" {
			t.Errorf("the label of the namespace of jobs is %q", label)
		}
	}
}

func TestChartRefuses(t *testing.T) {
	t.Parallel()
	const token = "agent.token=pul-1 "
	for name, test := range map[string]struct{ set, want string }{
		"no token":                 {"", "there is no pool access token: set agent.token, or agent.existingSecretName"},
		"two tokens":               {token + "agent.existingSecretName=x", "are both set: keep one of them"},
		"a token in the ConfigMap": {"config.token=pul-1", "config.token would be stored in a ConfigMap"},
		"a pool's token in the ConfigMap": {
			"config.pools[0].name=a config.pools[0].token=pul-1", "the token of pool a would be stored",
		},
		"a pool without a token": {"config.pools[0].name=a", "there is no pool access token"},
		"OIDC without a pool": {
			"agent.oidc.audience=x", "set config.organization_name and config.runner_pool_id",
		},
		"a Pod template that is not JSON": {token + "podTemplate.workerPod=x", "invalid character"},
		"two Pod templates": {
			token + `config.pod_template.spec.hostname=x podTemplate.workerPod=\{"spec":\{\}\}`, "keep one of them",
		},
		"too short a grace period": {
			token + "terminationGracePeriodSeconds=60 config.shutdown_timeout=10m",
			"config.shutdown_timeout is 10m: an agent needs two minutes more",
		},
		"a namespace without a name": {
			token + "workerNamespace.create=true", "workerNamespace.create is set: also set workerNamespace.name",
		},
		"a misspelt key": {
			token + "config.poling_interval=1m", "at '/config': additional properties 'poling_interval' not allowed",
		},
		"a wrong value of a key": {
			token + "config.max_concurrent_workflows=none", "at '/config/max_concurrent_workflows'",
		},
		"a misspelt key of a Pod": {
			token + "config.pod_template.spec.contaners=x", "additional properties 'contaners' not allowed",
		},
		"the tag latest":             {token + "image.tag=latest", "image.tag is latest: nodes can then run"},
		"a digest that is too short": {token + "image.digest=sha256:1", "at '/image/digest'"},
		"a volume of several agents": {
			token + "persistence.enabled=true deploymentStrategy.type=Recreate replicaCount=2", "set replicaCount to 1",
		},
		"a volume of two agents": {token + "persistence.enabled=true", "deploymentStrategy.type to Recreate"},
		"a volume of scaled agents": {
			token + "persistence.enabled=true deploymentStrategy.type=Recreate autoscaling.enabled=true",
			"autoscaling.enabled to false",
		},
		"an unknown Pod Security Standard": {token + "jobs.podSecurity=baseline", "at '/jobs/podSecurity'"},
		"a misspelt value":                 {token + "replicas=3", "additional properties 'replicas' not allowed"},
		"another deployTarget":             {token + "agent.deployTarget=ecs", "at '/agent/deployTarget'"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, value := range strings.Fields(test.set) {
				args = append(args, "--set", value)
			}
			manifests, message, err := render(t, args...)
			if err == nil || !strings.Contains(message, test.want) {
				t.Errorf("helm prints %q, want %q\n%s", message, test.want, manifests)
			}
		})
	}
}
