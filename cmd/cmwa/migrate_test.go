package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// TestMigrate prints configurations of Pulumi's own agent as configurations of this agent, which the agent accepts
// without a warning.
func TestMigrate(t *testing.T) {
	t.Parallel()
	const oldFile = `version: 1.3.0
token: pul-secret
service_url: https://pulumi.example.com/
workflow_runners_directory: /opt/agent
workflow_runners_embeddable: /opt/agent/embeddable
shared_volume_directory: /mnt/work
token_expiration: 3600
polling: 10s
`
	placeholders := strings.NewReplacer("SERVICE_URL/", "https://pulumi.example.com/", "POOL_TOKEN", "pul-secret",
		"image: pulumi/customer-managed-workflow-agent:latest", "image: pulumi/customer-managed-workflow-agent:v2.3.0")
	deployment := placeholders.Replace(readText(t, "testdata/install/original.yaml"))
	for name, test := range map[string]struct {
		file, content string
		environ       []string
		code          int
		comments      []string
		settings      string // without origins
	}{
		"a file with an old name": {
			file: "pulumi-deployment-agent.yaml", content: oldFile, code: 1,
			comments: []string{
				"# Not taken over, because this agent does not have it:\n" +
					"#   - pulumi-deployment-agent.yaml:8:1: polling: unknown key\n# Left to do:\n",
				"#   - write the token of pulumi-deployment-agent.yaml:2 to the file pool.token next to this one",
				"#   - working_directory (pulumi-deployment-agent.yaml:4) is left out",
				"# Without effect:\n" +
					"#   - pulumi-deployment-agent.yaml:5:1: workflow_runners_embeddable: has no effect; ",
			},
			settings: "token_file: pool.token\nservice_url: https://pulumi.example.com/\n" +
				"shared_volume_directory: /mnt/work\ntoken_expiration: 3600\n",
		},
		"variables override a file": {
			file: "pulumi-workflow-agent.yaml", content: "deploy_target: docker\npull_image: false\n",
			environ: []string{
				"PULUMI_AGENT_TOKEN=pul-secret", "PULUMI_AGENT_DEPLOY_TARGET=kubernetes",
				"PULUMI_AGENT_MEM_QUANTITY=4", "PULUMI_AGENT_DEBUG_POD=true",
				"PULUMI_AGENT_ENABLED_WORKFLOW_TYPES=deployment,insights_scan",
			},
			comments: []string{
				"# Left to do:",
				"#   - keep the variable PULUMI_AGENT_TOKEN, or write the token to a file",
				"#   - remove these variables, which would override this file: PULUMI_AGENT_DEPLOY_TARGET, " +
					"PULUMI_AGENT_ENABLED_WORKFLOW_TYPES, PULUMI_AGENT_MEM_QUANTITY\n",
				"#   - keep the variable PULUMI_AGENT_DEBUG_POD\n",
			},
			settings: "deploy_target: kubernetes\npull_image: false\n" +
				"enabled_workflow_types: [deployment, insights_scan]\nkubernetes:\n  memory: 4Gi\n",
		},
		"a section of another target": {
			file: "pulumi-workflow-agent.yaml", content: "token_file: /run/token\nkubernetes: {namespace: jobs}\n",
			comments: []string{"# Without effect:\n" +
				"#   - kubernetes.namespace (pulumi-workflow-agent.yaml:2), because of deploy_target\n"},
			settings: "token_file: /run/token\n",
		},
		"a section that only one pool uses": {
			file: "pulumi-workflow-agent.yaml",
			content: "kubernetes: {namespace: jobs}\npools: [{name: a, token_file: /a}, {name: c, token_file: /c}, " +
				"{name: b, token_file: /b, deploy_target: kubernetes}]\n",
			settings: "pools:\n  - name: a\n    token_file: /a\n  - name: c\n    token_file: /c\n" +
				"  - name: b\n    token_file: /b\n    deploy_target: kubernetes\n" +
				"    kubernetes:\n      namespace: jobs\n",
		},
		"a file of this agent": {
			file: "pulumi-workflow-agent.yaml", code: 1,
			content: "deploy_target: kubernetes\npools: [{name: a, token: pul-secret}, " +
				"{name: b, token: pul-secret-b, pod_template: {metadata: {annotations: {a: b}}}}]\n",
			comments: []string{
				"#   - pod_template (pulumi-workflow-agent.yaml:2), because it may have secrets: copy it\n",
				"to the file a.token next", "to the file b.token next",
			},
			settings: "deploy_target: kubernetes\npools:\n  - name: a\n    token_file: a.token\n" +
				"  - name: b\n    token_file: b.token\n",
		},
		"tasks of ECS": {
			file:    "pulumi-workflow-agent.yaml",
			content: "token_file: /run/token\ndeploy_target: ecs\necs: {cluster: jobs, subnets: [a, b]}\n", code: 1,
			comments: []string{
				"# Not taken over, because this agent does not have it:",
				"#   - deploy_target: ecs (pulumi-workflow-agent.yaml:2); use docker, kubernetes or process\n",
				"#   - ecs.cluster (pulumi-workflow-agent.yaml:3)\n",
				"#   - ecs.subnets (pulumi-workflow-agent.yaml:3)\n",
			},
			settings: "token_file: /run/token\n",
		},
		"the manifests of a Deployment": {
			file: "original.yaml", content: deployment,
			comments: []string{
				"# Left to do:",
				"#   - remove these variables, which would override this file: PULUMI_AGENT_DEPLOY_TARGET, ",
				"#   - keep this variable, or write its value into this file: " +
					"original.yaml:72:21: PULUMI_AGENT_TOKEN: ",
				"#   - remove the variable PULUMI_AGENT_IMAGE: Pods copy the runner from the image of the agent's " +
					"Pod; an agent outside of the cluster needs kubernetes.image\nservice_url: ",
			},
			settings: "service_url: https://pulumi.example.com/\nshared_volume_directory: /mnt/work\n" +
				"deploy_target: kubernetes\npolling_interval: 500ms\n" +
				"kubernetes:\n  image_pull_policy: IfNotPresent\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := fileOf(t, test.file, test.content)
			got := cmwa(test.environ, "migrate", path)
			text := strings.ReplaceAll(got.stdout, path, test.file)
			if got.code != test.code || got.stderr != "" || strings.Contains(text, "pul-secret") {
				t.Errorf("exit code %d, standard error %q", got.code, got.stderr)
			}
			var settings string
			for line := range strings.Lines(text) {
				if setting, _, _ := strings.Cut(line, "#"); setting != "" {
					settings += strings.TrimRight(setting, " \n") + "\n"
				}
			}
			remaining := text
			for _, comment := range test.comments {
				_, after, found := strings.Cut(remaining, comment)
				if !found {
					t.Fatalf("%q is missing, or not in its place, in\n%s", comment, text)
				}
				remaining = after
			}
			if settings != test.settings {
				t.Errorf("the settings are\n%swant\n%s", settings, test.settings)
			}
			c, problems := asAgent(schema.Source{
				Path: "new.yaml", Content: []byte(text), Elsewhere: true,
				Environ: map[string]string{"PULUMI_AGENT_TOKEN": "pul-secret"},
			})
			if c == nil || len(problems.Warnings()) > 1 { // one that a variable overrides token_file
				t.Errorf("the agent refuses the new file: %v", problems)
			}
		})
	}

	t.Run("a file that is not valid", func(t *testing.T) {
		t.Parallel()
		got := cmwa(nil, "migrate", fileOf(t, "pulumi-workflow-agent.yaml", "token: a\npolling_interval: often\n"))
		if got.code != 2 || got.stdout != "" || !strings.Contains(got.stderr, ":2:19: polling_interval: ") {
			t.Errorf("exit code %d, %q, %q", got.code, got.stdout, got.stderr)
		}
	})
}

// TestMigrateDocument runs the commands of the document about the migration, with the manifests of the original's
// Deployment, and renders the chart with the result.
func TestMigrateDocument(t *testing.T) {
	t.Parallel()
	directory := directoryOf(t, map[string]string{
		"pulumi-workflow-agent.yaml": "token: pul-secret\ndeploy_target: kubernetes\n",
		"deployment.yaml": strings.Replace(readText(t, "testdata/install/original.yaml"),
			"SERVICE_URL/", "https://pulumi.example.com/", 1),
	})
	for _, command := range commandsIn(t, "migration.md", "cmwa ", "(echo ") {
		cmd := exec.Command("/bin/bash", "-euo", "pipefail", "-c", command)
		cmd.Dir = directory
		cmd.Env = []string{"PATH=" + filepath.Dir(staticCmwa(t)) + ":" + os.Getenv("PATH"), "HOME=" + directory}
		if got := outputOf(t, cmd); got.code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", command, got.code, got.stdout, got.stderr)
		}
	}
	values := filepath.Join(directory, "values.yaml")
	manifests, message, err := render(t, "--values", values, "--set", "agent.token=pul-1")
	if err != nil || !strings.Contains(manifests, "service_url: https://pulumi.example.com/") {
		t.Errorf("the chart refuses the values: %v %s\n%s", err, message, readText(t, values))
	}
}
