package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
)

const kustomizeDirectory = "../../examples/kubernetes"

// agentSelector finds the agents that the examples install.
const agentSelector = nameLabel + "=customer-managed-workflow-agent"

// kustomization describes an overlay that a test creates over one of the overlays of the
// examples.
type kustomization struct {
	overlay      string                      // the name of an overlay of the examples
	namespace    string                      // replaces the namespace of the examples
	organization string                      // if not empty, replaces the organization of the examples
	tokens       map[string]string           // by the name of the file in the directory of the overlay
	components   []string                    // names of components of the examples
	change       func(config map[string]any) // changes the configuration; may be nil
}

// write copies the examples to a temporary directory, adds the overlay of the test, and
// returns the overlay's directory.
func (k kustomization) write(t *testing.T) (directory string) {
	t.Helper()
	root := t.TempDir()
	noError(t, os.CopyFS(root, os.DirFS(kustomizeDirectory)))
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		noError(t, os.WriteFile(path, []byte(text), 0o600))
	}

	// Write the tokens and the organization, as an operator does.
	for name, token := range k.tokens {
		write(filepath.Join("overlays", k.overlay, name), token+"\n")
	}
	if k.organization != "" {
		path := filepath.Join("overlays", k.overlay, "projected-token.yaml")
		write(path, strings.ReplaceAll(readText(t, filepath.Join(root, path)), "acme", k.organization))
	}

	// Change the configuration of the example.
	example := filepath.Join(root, "overlays", k.overlay, schema.FileName)
	if _, err := os.Stat(example); os.IsNotExist(err) {
		example = filepath.Join(root, "base", schema.FileName)
	}
	config := map[string]any{}
	noError(t, yaml.Unmarshal([]byte(readText(t, example)), &config))
	if k.change != nil {
		k.change(config)
	}
	text, err := yaml.Marshal(config)
	noError(t, err)
	write("overlays/test/"+schema.FileName, string(text))

	// Write the overlay, as an operator does.
	var components strings.Builder
	for _, name := range k.components {
		fmt.Fprintf(&components, "\n  - ../../components/%s", name)
	}
	write("overlays/test/kustomization.yaml", `namespace: `+k.namespace+`
resources: [../`+k.overlay+`]
components:`+components.String()+`
images:
  - name: registry.invalid/cmwa
    newName: cmwa/cmwa
    newTag: `+strings.TrimPrefix(imageName, "cmwa/cmwa:")+`
configMapGenerator:
  - name: workflow-agent
    behavior: replace
    files: [`+schema.FileName+`]
`)
	return filepath.Join(root, "overlays/test")
}

func TestKustomize(t *testing.T) {
	t.Parallel()
	for overlay, tokens := range map[string]map[string]string{
		"plain": {"token": "pul-1"}, "restricted": {"token": "pul-1"}, "oidc": nil,
		"pools": {"production.token": "pul-1", "teams.token": "pul-2"},
	} {
		t.Run(overlay+" renders valid manifests", func(t *testing.T) {
			directory := kustomization{overlay: overlay, namespace: "other", tokens: tokens}.write(t)
			text := must(t, kubectlVariable, "kustomize", filepath.Join(directory, "..", overlay))
			checkManifests(t, text)
			if names := regexp.MustCompile(`(?m)^  name: .*-[0-9a-f]{10}$`).FindAllString(text, -1); names != nil {
				t.Errorf("names of objects have digests: %q", names)
			}
		})
		t.Run(overlay+" can be an overlay", func(t *testing.T) {
			components := []string{"network-policy", "egress", "service-monitor", "registry-credentials", "events"}
			directory := kustomization{
				overlay: overlay, namespace: "other", tokens: tokens, components: components,
			}.write(t)
			text := must(t, kubectlVariable, "kustomize", directory)
			kinds := checkManifests(t, text)
			for _, verbs := range []string{
				"- secrets\n  verbs:\n  - create\n  - delete\n", "- events\n  verbs:\n  - list\n",
			} {
				if !strings.Contains(text, verbs) {
					t.Errorf("there is no %q in\n%s", verbs, text)
				}
			}
			for _, kind := range []string{"Deployment", "NetworkPolicy", "ServiceMonitor"} {
				if !slices.Contains(kinds, kind) {
					t.Errorf("there is no %s in %v", kind, kinds)
				}
			}
			ports := fieldOf(t, text, "NetworkPolicy workflow-agent-egress", ".spec.egress[*].ports[*].port")
			if ports != "53 53 443 6443" {
				t.Errorf("the agent can connect to the ports %s", ports)
			}
			if strings.Contains(text, "namespace: cmwa") || !strings.Contains(text, "namespace: other") {
				t.Errorf("an object is in another namespace:\n%s", text)
			}
			if n := strings.Count(text, imageName); n != 1 {
				t.Errorf("the image is named %d times", n)
			}
		})
	}
	t.Run("only the component namespace, and an overlay that uses it, have the namespace", func(t *testing.T) {
		for overlay, want := range map[string]bool{"plain": false, "jobs-namespace": false, "restricted": true} {
			k := kustomization{overlay: overlay, namespace: "other", tokens: map[string]string{"token": "pul-1"}}
			directory := k.write(t)
			kinds := checkManifests(t, must(t, kubectlVariable, "kustomize", filepath.Join(directory, "..", overlay)))
			if slices.Contains(kinds, "Namespace") != want {
				t.Errorf("%s has the objects %v", overlay, kinds)
			}
		}
		k := kustomization{
			overlay: "plain", namespace: "other", tokens: map[string]string{"token": "pul-1"},
			components: []string{"namespace"},
		}
		text := must(t, kubectlVariable, "kustomize", k.write(t))
		if !strings.Contains(text, "kind: Namespace\nmetadata:\n  name: other\n") {
			t.Errorf("there is no namespace other in\n%s", text)
		}
	})
	t.Run("jobs-namespace separates the agent and the jobs", func(t *testing.T) {
		k := kustomization{overlay: "jobs-namespace", tokens: map[string]string{"token": "pul-1"}}
		text := must(t, kubectlVariable, "kustomize", filepath.Join(k.write(t), "..", "jobs-namespace"))
		want := map[string][]string{
			"cmwa": {
				"ConfigMap workflow-agent", "Deployment workflow-agent", "PodDisruptionBudget workflow-agent",
				"Role workflow-agent", "RoleBinding workflow-agent", "Secret workflow-agent-token",
				"Service workflow-agent", "ServiceAccount workflow-agent",
			},
			"cmwa-jobs": {
				"PodDisruptionBudget workflow-runner", "Role workflow-agent", "RoleBinding workflow-agent",
				"ServiceAccount workflow-runner",
			},
		}
		got := map[string][]string{}
		for document := range strings.SplitSeq(text, "\n---\n") {
			var object metav1.PartialObjectMetadata
			noError(t, yaml.Unmarshal([]byte(document), &object))
			got[object.Namespace] = append(got[object.Namespace], object.Kind+" "+object.Name)
		}
		for _, names := range got {
			slices.Sort(names)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the objects by namespace (-want +got):\n%s", diff)
		}
	})
	t.Run("a missing token is an error that names the file", func(t *testing.T) {
		directory := kustomization{overlay: "plain", namespace: "other"}.write(t)
		_, message, err := try(t, kubectlVariable, "kustomize", directory)
		if err == nil || !strings.Contains(message, "overlays/plain/token") {
			t.Errorf("kubectl prints %q", message)
		}
	})
}

// install creates a namespace of the cluster, applies a kustomization to it, and blocks until the
// agent is ready. It changes the configuration with adapt, and then with k.change.
func (w *world) install(k kustomization) (agents *deployment, directory string) {
	w.t.Helper()
	w.must(clusterImage())
	change := k.change
	k.namespace = w.cluster.Name + "-" + k.overlay
	k.change = func(config map[string]any) {
		w.adapt(config)
		if change != nil {
			change(config)
		}
	}
	directory = k.write(w.t.(*testing.T))
	agents = w.deployed(k.namespace, "workflow-agent", agentSelector)
	w.t.Cleanup(func() { // a failing test does not delete the objects itself
		agents.remove()
		for _, args := range [][]string{
			{"pods", "--all", "--namespace", k.namespace, "--force"},
			{"namespace", k.namespace},
		} {
			args = append([]string{"delete", "--ignore-not-found", "--wait=false"}, args...)
			_, message, err := try(w.t, kubectlVariable, args...)
			if err != nil {
				w.t.Error(message)
			}
		}
	})
	must(w.t, kubectlVariable, "create", "namespace", k.namespace)
	must(w.t, kubectlVariable, "apply", "-k", directory)
	agents.awaitReady(1)
	return agents, directory
}

// adapt changes a configuration of the examples: the agent polls the service of the test
// at short intervals, and Pods use images that the cluster has and fewer resources.
func (w *world) adapt(config map[string]any) {
	config["service_url"] = w.url
	config["polling_interval"] = "200ms"
	config["job_status_loop_interval"] = "500ms"
	config["request_retry_wait"] = "200ms"
	at := func(parent map[string]any, key string) map[string]any {
		child, _ := parent[key].(map[string]any)
		if child == nil {
			child = map[string]any{}
			parent[key] = child
		}
		return child
	}
	pods := at(config, "kubernetes")
	pods["cpu"], pods["memory"] = "10m", "16Mi"
	spec := at(at(config, "pod_template"), "spec")
	containers, _ := spec["containers"].([]any)
	if len(containers) == 0 {
		containers = []any{map[string]any{"name": "pulumi-workflow"}}
	}
	containers[0].(map[string]any)["imagePullPolicy"] = "Never"
	spec["containers"] = containers
}

// runs queues a job, and checks that the job succeeds and that its log contains want.
func (w *world) runs(stack string, job order, want string) {
	w.t.Helper()
	w.queue(stack, job)
	w.await(stack, "succeeded", "failed")
	w.wantSteps(stack, "succeeded", "succeeded")
	w.wantLog(stack, want)
}

// whoAmI is a shell command that prints the service account of a job's Pod.
const whoAmI = `cut -d . -f 2 /var/run/secrets/kubernetes.io/serviceaccount/token |
	tr _- /+ | base64 -d 2>/dev/null | grep -o '"sub":"[^"]*"'`

func TestKustomizeOnCluster(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		agents, directory := w.install(kustomization{
			overlay: "plain", tokens: map[string]string{"token": w.pool}, components: []string{"network-policy"},
		})
		w.runs("one", oneStep(whoAmI), ":"+agents.namespace+":workflow-runner")

		// Edit the ConfigMap: the agent reloads and does not restart.
		agents.keep(func() {
			agents.rewrite(func(text string) string {
				return strings.Replace(text, "max_concurrent_workflows: 10", "max_concurrent_workflows: 3", 1)
			})
		})
		w.runs("two", oneStep("echo again"), "again")
		if levels := agents.doctor(); levels["kubernetes-agent-pod"] != "ok" || levels["http-server"] != "ok" {
			t.Errorf("cmwa doctor in the agent's Pod finds %v", levels)
		}
		if lines := agents.warnings(); len(lines) > 0 {
			t.Errorf("the agent warns: %s", lines)
		}

		// Run the commands of the documents for an agent that is installed.
		inNamespace := strings.NewReplacer("kubectl -n cmwa ", "kubectl -n "+agents.namespace+" ",
			"kubectl get ", "kubectl -n "+agents.namespace+" get ")
		for document, begin := range map[string]string{
			kustomizeDirectory + "/README.md": "kubectl -n cmwa ", jobsDocument: "kubectl get ",
		} {
			for _, command := range commandsIn(t, document, begin) {
				w.shell(w.directory, inNamespace.Replace(command), kubectlVariable).exit(cli.ExitOK)
			}
		}

		// Delete everything with one command, when the agent has no work left. The namespace stays.
		w.eventually("the Pods and the records of the jobs are removed", func() bool {
			return must(t, kubectlVariable, "get", "pods,configmaps,secrets", "--namespace", agents.namespace,
				"--selector", "cmwa.job", "--output", "name") == ""
		})
		must(t, kubectlVariable, "delete", "-k", directory)
		var namespace corev1.Namespace
		err := agents.core.Get().Resource("namespaces").Name(agents.namespace).Do(t.Context()).Into(&namespace)
		if err != nil || namespace.DeletionTimestamp != nil {
			t.Errorf("the namespace is being deleted at %v, %v", namespace.DeletionTimestamp, err)
		}
	})

	t.Run("restricted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		agents, _ := w.install(kustomization{overlay: "restricted", tokens: map[string]string{"token": w.pool}})
		var namespace corev1.Namespace
		err := agents.core.Get().Resource("namespaces").Name(agents.namespace).Do(t.Context()).Into(&namespace)
		if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; err != nil || level != "restricted" {
			t.Errorf("the namespace has the level %q, %v", level, err)
		}
		w.runs("one", oneStep(`touch "$HOME/file" && echo "user $(id -u)"`), "user 1000\n")
	})

	t.Run("oidc", func(t *testing.T) {
		t.Parallel()
		keys := fileOf(t, "jwks.json", must(t, kubectlVariable, "get", "--raw", "/openid/v1/jwks"))
		w := newWorld(t, "kubernetes", "--oidc-issuer", "https://kubernetes.default.svc="+keys)
		w.install(kustomization{overlay: "oidc", organization: "organization", change: func(config map[string]any) {
			config["organization_name"], config["runner_pool_id"] = "organization", w.poolID
		}})
		w.runs("one", oneStep("echo it runs"), "it runs")
	})

	t.Run("pools", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "kubernetes")
		pools := w.pools(2)
		tokens := map[string]string{"production.token": pools[0].token, "teams.token": pools[1].token}
		agents, _ := w.install(kustomization{overlay: "pools", tokens: tokens})
		account := ":" + agents.namespace + ":workflow-runner"
		w.runs("one", oneStep(whoAmI).in(pools[0].id), account+`-production"`)
		w.runs("two", oneStep(whoAmI).in(pools[1].id), account+`"`)
	})
}
