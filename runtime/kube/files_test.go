package kube

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// documentedTemplate is the complete example of a Pod template in the documentation of Pulumi's own agent.
const documentedTemplate = `{
	"metadata": {"labels": {"cost-optimization": "true"}, "annotations": {"cost-optimization": "true"}},
	"spec": {
		"nodeSelector": {"kubernetes.io/os": "linux", "node-type": "worker"},
		"tolerations": [
			{"key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule"},
			{"key": "dedicated", "operator": "Equal", "value": "pulumi-workload", "effect": "NoSchedule"}
		],
		"initContainers": [{"name": "init-setup", "image": "busybox:1.35", "command": ["sh", "-c",
			"echo 'Initializing pod...' && echo 'Pod ready' > /mnt/pulumi/workflow/status.txt"]}],
		"containers": [{"name": "pulumi-workflow", "env": [{"name": "HELLO", "value": "world"}],
			"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}]
	}
}`

func TestTemplateFiles(t *testing.T) {
	mounted := func(c corev1.Container) (volumes []string) {
		for _, m := range c.VolumeMounts {
			volumes = append(volumes, m.Name+":"+m.MountPath)
		}
		return volumes
	}
	const files = filesVolume + ":/mnt/pulumi/workflow"
	for name, c := range map[string]struct {
		template   string
		init, main []string // of the first init container of the template; of the job's container, without the agent's
	}{
		"documented example": {documentedTemplate, []string{files}, []string{files}},
		"own volume in the init container": {`{"spec": {"volumes": [{"name": "own", "emptyDir": {}}],
			"initContainers": [{"name": "a", "image": "a",
				"volumeMounts": [{"name": "own", "mountPath": "/mnt/pulumi/workflow/"}]}]}}`,
			[]string{"own:/mnt/pulumi/workflow/"}, []string{files}},
		"own volume in the job's container": {`{"spec": {"volumes": [{"name": "own", "emptyDir": {}}],
			"initContainers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "own", "mountPath": "/own"}]}],
			"containers": [{"name": "pulumi-workflow",
				"volumeMounts": [{"name": "own", "mountPath": "/mnt/pulumi/workflow"}]}]}}`,
			[]string{"own:/own", files}, []string{"own:/mnt/pulumi/workflow"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(t, jobWith(c.template))
			if got := mounted(pod.Spec.InitContainers[1]); !slices.Equal(got, c.init) {
				t.Errorf("the init container mounts %q, want %q", got, c.init)
			}
			want := append([]string{
				runnerVolume + ":" + runnerDirectory, handoffVolume + ":" + handoffDirectory,
			}, c.main...)
			if got := mounted(pod.Spec.Containers[0]); !slices.Equal(got, want) {
				t.Errorf("the job's container mounts %q, want %q", got, want)
			}
			if got := mounted(pod.Spec.InitContainers[0]); len(got) != 1 {
				t.Errorf("the agent's init container mounts %q, want the runner's volume only", got)
			}
		})
	}
}

// TestTemplateFilesOnCluster runs a job with the documented example. Only what this cluster lacks is
// changed: the label of the node and the image. The init container also looks for the runner and the key.
func TestTemplateFilesOnCluster(t *testing.T) {
	t.Parallel()
	n := onCluster(t)
	service, job := newScriptJob(t, n.HostAddress(t),
		`cat /mnt/pulumi/workflow/status.txt; echo more >/mnt/pulumi/workflow/status.txt; `+
			`echo "hello $HELLO"; echo hello`)
	text := strings.NewReplacer(`, "node-type": "worker"`, "",
		`"busybox:1.35"`, `"`+kubetest.BaseImage+`", "imagePullPolicy": "Never"`,
		`"name": "pulumi-workflow",`, `"name": "pulumi-workflow", "imagePullPolicy": "Never",`,
		`> /mnt/pulumi/workflow/status.txt`,
		`> /mnt/pulumi/workflow/status.txt && ls -R /mnt >> /mnt/pulumi/workflow/status.txt`,
	).Replace(documentedTemplate)
	template(text)(job)
	service.Add(job)
	runToEnd(t, service, openExecutor(t, n), job, func() []string { return nil })
	got := service.Record(job.ID).Text(1)
	if !strings.Contains(got, "Pod ready\n") || !strings.Contains(got, "hello world\n") {
		t.Errorf("step 1 printed\n%s\nwant the file of the init container, and the variable of the template", got)
	}
	if strings.Contains(got, "private") || strings.Contains(got, "workflow-runner") {
		t.Errorf("the init container reaches the runner:\n%s", got)
	}
}
