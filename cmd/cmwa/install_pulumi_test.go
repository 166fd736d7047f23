//go:build compatibility

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// TestInstallPulumi installs the agent with the commands and the program of examples/pulumi, changes the agent's
// configuration, and removes everything. Its provider takes minutes to compile, so that only make compatibility
// runs it. The test also checks the versions with which that target runs all tests.
func TestInstallPulumi(t *testing.T) {
	const example = "../../examples/pulumi/Pulumi.yaml"
	t.Parallel()
	w := newWorld(t, "kubernetes")
	noError(t, clusterImage())
	kubernetes := os.Getenv("KUBERNETES")
	wantHelm := map[string]string{"oldest": "v3.", "newest": "v4."}[kubernetes]
	if helm := must(t, helmVariable, "version", "--short"); wantHelm == "" || !strings.HasPrefix(helm, wantHelm) {
		t.Errorf("with KUBERNETES=%s the version of Helm is %s, want %s", kubernetes, helm, wantHelm)
	}
	want := regexp.MustCompile(`k8s\.io/kubernetes (v\S+)`).FindStringSubmatch(
		readText(t, "../../testdata/toolchain/kube/"+kubernetes+".mod"))[1]
	version := must(t, kubectlVariable, "get", "nodes", "--output",
		"jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
	if version != want {
		t.Errorf("the version of Kubernetes is %s, want %s", version, want)
	}

	namespace := w.cluster.Name + "-agent"
	t.Cleanup(func() {
		must(t, kubectlVariable, "delete", "namespace", "--ignore-not-found", "--wait=false", namespace)
	})
	directory := filepath.Join(t.TempDir(), "pulumi")
	noError(t, os.CopyFS(filepath.Join(directory, "../chart"), os.DirFS(chartDirectory)))
	write := func(config map[string]any) {
		w.adapt(config)
		var program map[string]any
		noError(t, yaml.Unmarshal([]byte(readText(t, example)), &program))
		resources := program["resources"].(map[string]any)
		properties := resources["agent"].(map[string]any)["properties"].(map[string]any)
		properties["values"].(map[string]any)["config"] = config
		text, err := yaml.Marshal(program)
		noError(t, err)
		noError(t, os.WriteFile(filepath.Join(directory, "Pulumi.yaml"), text, 0o600))
	}
	noError(t, os.MkdirAll(directory, 0o755))
	noError(t, os.WriteFile(filepath.Join(directory, "token"), []byte(w.pool), 0o600))
	environment := "export PULUMI_HOME=" + t.TempDir() + " PULUMI_BACKEND_URL=file://" + t.TempDir() +
		" PULUMI_CONFIG_PASSPHRASE=passphrase PULUMI_SKIP_CONFIRMATIONS=true; "
	run := func(command string) {
		w.shell(directory, environment+command, "CMWA_TEST_PROVIDER", kubectlVariable).exit(cli.ExitOK)
	}

	// 1. The commands of the comment install the agent.
	write(map[string]any{})
	install := strings.NewReplacer("registry.example.com/", "cmwa/", "1.2.3", imageVersion)
	commands := regexp.MustCompile(`(?m)^#   (pulumi .*)$`).FindAllStringSubmatch(readText(t, example), -1)
	if len(commands) != 5 {
		t.Fatalf("the comment of %s has %d commands", example, len(commands))
	}
	for i, command := range commands {
		if i == 1 {
			run("pulumi config set namespace-name " + namespace)
		}
		run(install.Replace(command[1]))
	}
	agents := w.deployed(namespace, "agent", "app.kubernetes.io/instance=agent")
	t.Cleanup(agents.remove)
	agents.awaitReady(1)
	w.runs("one", oneStep(whoAmI), ":"+namespace+":agent-runner")

	// 2. After pulumi up with another configuration, the agent reloads it and does not restart. The ConfigMap is
	// updated, not replaced.
	configMap := func() string {
		return must(t, kubectlVariable, "get", "configmap", "agent", "--namespace", namespace, "--output",
			"jsonpath={.metadata.uid}")
	}
	before := configMap()
	agents.keep(func() {
		generations := agents.generations()
		write(map[string]any{"max_concurrent_workflows": 3})
		run("pulumi up")
		agents.awaitReload(generations)
	})
	if after := configMap(); after != before {
		t.Errorf("the ConfigMap was replaced: its UID was %s and is %s", before, after)
	}
	if lines := agents.warnings(); len(lines) > 0 {
		t.Errorf("the agent warns: %s", lines)
	}

	// 3. pulumi destroy removes everything.
	run("pulumi destroy")
	if got := must(t, kubectlVariable, "get", "namespace", namespace, "--ignore-not-found"); got != "" {
		t.Errorf("pulumi destroy leaves the namespace: %s", got)
	}
}
