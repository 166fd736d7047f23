package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// jobImage is an image with a shell. Its tag is not latest, so the kubelet uses the image
// of the node and contacts no registry.
const jobImage = "cmwa/job:local"

// TestInstallOriginalDeployment installs the manifests that the installer of Pulumi's own agent creates,
// and then changes only the image, with the commands of the document. The test replaces the URL of the
// service and the token.
func TestInstallOriginalDeployment(t *testing.T) {
	t.Parallel()
	install := func(t *testing.T, template string) (*world, *deployment) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		noError(t, clusterImage())
		manifests := strings.NewReplacer("SERVICE_URL/", w.url+"/", "POOL_TOKEN", w.pool).Replace(
			readText(t, "testdata/install/original.yaml"))
		if template != "" {
			manifests = strings.Replace(manifests, "\ndata:\n", "\ndata:\n  worker-pod.json: '"+template+"'\n", 1)
		}
		must(t, kubectlVariable, "apply", "--namespace", w.cluster.Name, "--filename",
			fileOf(t, "original.yaml", manifests))
		agents := w.deployed(w.cluster.Name, "workflow-agent-pool", agentSelector)
		t.Cleanup(agents.remove)
		move := strings.NewReplacer("--namespace pulumi ", "--namespace "+w.cluster.Name+" ",
			"registry.example.com/cmwa:1.2.3", imageName)
		for _, command := range commandsIn(t, kustomizeDirectory+"/README.md", "kubectl --namespace pulumi ") {
			w.shell(w.directory, move.Replace(command), kubectlVariable).exit(cli.ExitOK)
		}
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
			template := strings.Contains(line, "cannot detect a replacement of this file") &&
				strings.Contains(line, "file=/mnt/worker-pod.json")
			image := strings.Contains(line, "PULUMI_AGENT_IMAGE has no effect") &&
				strings.Contains(line, "value=pulumi/customer-managed-workflow-agent:latest agent_image="+imageName)
			if !template && !image {
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

// chartValues writes a values file of the chart with this token and configuration.
func (w *world) chartValues(token string, config map[string]any) string {
	w.t.Helper()
	w.adapt(config)
	text, err := yaml.Marshal(map[string]any{
		"image":  map[string]any{"repository": "cmwa/cmwa", "tag": imageVersion},
		"agent":  map[string]any{"token": token},
		"config": config, "networkPolicy": map[string]any{"enabled": true},
	})
	w.must(err)
	return fileOf(w.t, "values.yaml", string(text))
}

// helm runs a command of helm on a release in the namespace of the world.
func (w *world) helm(command, release string, args ...string) string {
	w.t.Helper()
	args = append([]string{command, release, "--namespace", w.cluster.Name, "--wait", "--timeout", "3m"}, args...)
	return must(w.t, helmVariable, args...)
}

// installChart installs the chart in the namespace of the world, with further arguments of helm. The
// name of the release must contain "agent". The release is removed with the namespace.
func (w *world) installChart(release, token string, args ...string) *deployment {
	w.t.Helper()
	w.must(clusterImage())
	values := w.chartValues(token, map[string]any{})
	w.helm("install", release, append([]string{chartDirectory, "--values", values}, args...)...)
	agents := w.deployed(w.cluster.Name, release, "app.kubernetes.io/instance="+release)
	w.t.Cleanup(agents.remove)
	agents.awaitReady(1)
	return agents
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

	// 1. The command of the README installs the agent, and prints the next commands.
	chart, err := filepath.Abs(chartDirectory)
	noError(t, err)
	install := strings.NewReplacer("examples/chart", chart, "--namespace pulumi ", "--namespace "+w.cluster.Name+" ",
		"registry.example.com/", "cmwa/", "1.2.3", imageVersion)
	command := install.Replace(commandsIn(t, chartDirectory+"/README.md", "helm install ")[0]) +
		" --values " + w.chartValues("", map[string]any{}) + " --wait --timeout 3m"
	notes := w.shell(directoryOf(t, map[string]string{"token": w.pool}), command, helmVariable)
	notes.exit(cli.ExitOK)
	notes.wantPrinted(1, "kubectl -n "+w.cluster.Name+" rollout status deployment/agent")
	agents := w.deployed(w.cluster.Name, "agent", "app.kubernetes.io/instance=agent")
	t.Cleanup(agents.remove)
	agents.awaitReady(1)
	w.runs("one", oneStep(whoAmI), ":"+w.cluster.Name+":agent-runner")

	// 2. helm test runs cmwa doctor, and removes its Pod.
	must(t, helmVariable, "test", "agent", "--namespace", w.cluster.Name, "--timeout", "3m")

	// 3. After helm upgrade with another configuration, the agent reloads it and does not
	// restart.
	agents.keep(func() {
		generations := agents.generations()
		w.helm("upgrade", "agent", chartDirectory, "--values", w.chartValues(w.pool, map[string]any{
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

	// 4. helm uninstall removes everything that helm install has created.
	w.eventually("the Pod of the job is removed", func() bool { return len(w.containers("two")) == 0 })
	w.helm("uninstall", "agent")
	w.eventually("helm has removed all its objects", func() bool { return everything() == before })
}

func TestInstallHelmNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kubernetes")
	jobs := w.cluster.Name + "-jobs"
	t.Cleanup(func() { must(t, kubectlVariable, "delete", "namespace", "--ignore-not-found", "--wait=false", jobs) })
	agents := w.installChart("agent", w.pool, "--set", "workerNamespace.create=true,workerNamespace.name="+jobs)
	w.runs("one", oneStep(whoAmI), ":"+jobs+":agent-runner")
	for check, level := range agents.doctor() {
		if level != "ok" && strings.HasPrefix(check, "kubernetes-") {
			t.Errorf("cmwa doctor reports %s for %s", level, check)
		}
	}

	// The next agent finds out that the first one no longer exists, and uses the same namespace.
	agents.kill(agents.pods()[0].Name)
	agents.awaitReady(1)
	w.runs("two", oneStep(whoAmI), ":"+jobs+":agent-runner")
	w.eventually("the Pods and the records of the jobs are removed", func() bool {
		return must(t, kubectlVariable, "get", "pods,configmaps", "--namespace", jobs, "--selector", "cmwa.job",
			"--output", "name") == ""
	})
	if lines := agents.warnings(); len(lines) > 0 {
		t.Errorf("the agent warns: %s", lines)
	}

	w.helm("uninstall", "agent")
	if got := must(t, kubectlVariable, "get", "namespace", jobs, "--output", "name"); got != "namespace/"+jobs+"\n" {
		t.Errorf("after helm uninstall, the namespace of jobs is %q", got)
	}
}
