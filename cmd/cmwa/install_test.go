package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// jobImage is an image with a shell. Its tag is not latest, so the kubelet uses the image
// of the node and contacts no registry.
const jobImage = "cmwa/job:local"

// TestInstallOriginalDeployment installs the manifests that the installer of Pulumi's own
// agent creates. The test replaces the image, the URL of the service and the token.
func TestInstallOriginalDeployment(t *testing.T) {
	t.Parallel()
	install := func(t *testing.T, template string) (*world, *deployment) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		noError(t, clusterImage())
		manifests := strings.NewReplacer("SERVICE_URL/", w.url+"/", "AGENT_IMAGE\n", imageName+"\n", "POOL_TOKEN",
			w.pool).Replace(readText(t, "testdata/install/original.yaml"))
		if template != "" {
			manifests = strings.Replace(manifests, "\ndata:\n", "\ndata:\n  worker-pod.json: '"+template+"'\n", 1)
		}
		must(t, kubectlVariable, "apply", "--namespace", w.cluster.Name, "--filename",
			fileOf(t, "original.yaml", manifests))
		agents := w.deployed(w.cluster.Name, "workflow-agent-pool", agentSelector)
		t.Cleanup(agents.remove)
		w.eventually("the three agents are healthy", func() bool {
			pods := agents.pods()
			healthy := slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
				return probe("http://"+pod.Status.PodIP+":8080/healthz") != 200
			})
			return len(healthy) == 3
		})
		return w, agents
	}
	job := func(command string) order {
		o := oneStep(command)
		o.Image = jobImage
		return o
	}

	t.Run("the kubelet mounts a directory in place of a missing Pod template", func(t *testing.T) {
		w, agents := install(t, "")
		w.runs("one", job("echo it runs"), "it runs")
		for _, line := range agents.warnings() {
			if !strings.Contains(line, "cannot detect a replacement of this file") ||
				!strings.Contains(line, "file=/mnt/worker-pod.json") {
				t.Errorf("an agent logs an unexpected warning: %s", line)
			}
		}
	})
	t.Run("with a Pod template", func(t *testing.T) {
		w, _ := install(t,
			`{"spec": {"containers": [{"name": "pulumi-workflow", "env": [{"name": "TEAM", "value": "platform"}]}]}}`)
		w.runs("one", job("echo team $TEAM"), "team platform")
	})
}

func TestInstallHelm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kubernetes")
	noError(t, clusterImage())
	everything := func() string {
		return must(t, kubectlVariable, "get", "--namespace", w.cluster.Name, "--output", "name",
			"all,configmaps,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies")
	}
	before := everything()

	// values writes a values file of the chart with this configuration.
	values := func(config map[string]any) string {
		w.adapt(config)
		text, err := yaml.Marshal(map[string]any{
			"image":  map[string]any{"tag": strings.TrimPrefix(imageName, "cmwa/cmwa:")},
			"agent":  map[string]any{"token": w.pool},
			"config": config, "networkPolicy": map[string]any{"enabled": true},
		})
		w.must(err)
		return fileOf(t, "values.yaml", string(text))
	}
	helm := func(command string, args ...string) string {
		t.Helper()
		args = append([]string{command, "tests", "--namespace", w.cluster.Name, "--wait", "--timeout", "3m"}, args...)
		return must(t, helmVariable, args...)
	}

	// 1. One command installs the agent, and prints the next commands.
	notes := helm("install", chartDirectory, "--values", values(map[string]any{}))
	want := "kubectl -n " + w.cluster.Name + " rollout status deployment/tests-agent"
	if !strings.Contains(notes, want) {
		t.Errorf("there is no %q in the notes:\n%s", want, notes)
	}
	agents := w.deployed(w.cluster.Name, "tests-agent", "app.kubernetes.io/instance=tests")
	t.Cleanup(agents.remove)
	agents.awaitReady(1)
	w.runs("one", oneStep(whoAmI), ":"+w.cluster.Name+":tests-agent-runner")

	// 2. After helm upgrade with another configuration, the agent reloads it and does not
	// restart.
	agents.keep(func() {
		generations := agents.generations()
		helm("upgrade", chartDirectory, "--values", values(map[string]any{
			"max_concurrent_workflows": 3,
			"pod_template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
				"name": "pulumi-workflow", "env": []any{map[string]any{"name": "TEAM", "value": "platform"}},
			}}}},
		}))
		agents.awaitReload(generations)
	})
	w.runs("two", oneStep("echo team $TEAM"), "team platform")
	if lines := agents.warnings(); len(lines) > 0 {
		t.Errorf("the agent warns: %s", lines)
	}

	// 3. helm uninstall removes everything that helm install has created.
	w.eventually("the Pod of the job is removed", func() bool { return len(w.containers("two")) == 0 })
	helm("uninstall")
	w.eventually("helm has removed all its objects", func() bool { return everything() == before })
}
