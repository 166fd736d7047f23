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
)

const chartDirectory = "../../examples/chart"

// render runs helm template on the chart, and returns the manifests and the standard error of helm.
func render(t *testing.T, args ...string) (manifests, message string, err error) {
	t.Helper()
	return try(t, helmVariable,
		append([]string{"template", "release", chartDirectory, "--namespace", "pulumi"}, args...)...)
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
		t.Run(name+" renders valid manifests", func(t *testing.T) {
			got, message, err := render(t, "--values", file)
			if err != nil {
				t.Fatal(message)
			}
			wantGolden(t, strings.TrimSuffix(file, ".values.yaml")+".golden.yaml", got)
			if kinds := checkManifests(t, got); !slices.Contains(kinds, "Deployment") {
				t.Errorf("the kinds are %v", kinds)
			}
		})
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
		"a misspelt value":     {token + "replicas=3", "additional properties 'replicas' not allowed"},
		"another deployTarget": {token + "agent.deployTarget=ecs", "at '/agent/deployTarget'"},
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
