package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// restrictedTemplate contains the fields that a job's container needs in a namespace that
// enforces Pod Security "restricted", and a read-only root file system.
const restrictedTemplate = `{"spec": {
	"securityContext": {"runAsNonRoot": true, "runAsUser": 1234, "seccompProfile": {"type": "RuntimeDefault"}},
	"containers": [{"name": "pulumi-workflow", "imagePullPolicy": "Never", "securityContext": {
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}]}}`

func TestStartRestrictedOnCluster(t *testing.T) {
	n := onCluster(t)
	n.Enforce(t, "restricted")
	host := n.HostAddress(t)

	inWork := strings.Replace(restrictedTemplate, `"imagePullPolicy": "Never",`,
		`"imagePullPolicy": "Never", "workingDir": "/work", "env": [{"name": "HOME", "value": "/work"}],
		"volumeMounts": [{"name": "work", "mountPath": "/work"}],`, 1)
	inWork = strings.Replace(inWork, `"spec": {`, `"spec": {"volumes": [{"name": "work", "emptyDir": {}}],`, 1)
	for name, c := range map[string]struct {
		script, template string
		want             []string
	}{
		"user without a name and read-only root": {`
			echo "user $(id -u), token $(cat /mnt/pulumi/pulumi.oidc)"
			cp /bin/busybox "$HOME/tool" && "$HOME/tool" echo "home works"
			echo "FROM_FILE=kept" >> "$PULUMI_ENV_FILE"
			echo hello`, restrictedTemplate, []string{"user 1234, token [secret]", "home works"}},
		"working directory of a template": {
			`echo "in $(pwd)"; touch here; echo hello`, inWork, []string{"in /work\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service, job := newScriptJob(t, host, c.script)
			job.OIDC = secret.New("token-for-clouds")
			template(c.template)(job)
			service.Add(job)
			runToEnd(t, service, openExecutor(t, n), job, func() []string { return nil })
			text := service.Record(job.ID).Text(1)
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("step 1 printed\n%s\nwant %q", text, want)
				}
			}
		})
	}
	t.Run("error lists the missing fields without a template", func(t *testing.T) {
		t.Parallel()
		_, log, err := startJob(t, n, openExecutor(t, n), func(*runtime.Job) {})
		if err == nil || !strings.Contains(log, "set security contexts in pod_template") ||
			!strings.Contains(log, `container "pulumi-workflow" must set`) || strings.Contains(log, prepareContainer) {
			t.Errorf("got %v, want an error, and the missing fields in the log of step 0:\n%s", err, log)
		}
	})
}

func TestRestoreInitRoot(t *testing.T) {
	for name, c := range map[string]struct {
		template string
		want     bool
	}{
		"no user":         {`{"spec": {"hostname": "a"}}`, true},
		"another user":    {`{"spec": {"securityContext": {"runAsUser": 1000}}}`, true},
		"root in the Pod": {`{"spec": {"securityContext": {"runAsUser": 0}}}`, false},
		"root in the init container": {
			`{"spec": {"initContainers": [{"name": "pulumi-workflow-prepare", "securityContext": {"runAsUser": 0}}]}}`,
			false,
		},
		"root in the Pod, not in the init container": {
			`{"spec": {"securityContext": {"runAsUser": 0}, "initContainers": [
				{"name": "pulumi-workflow-prepare", "securityContext": {"runAsUser": 1}}]}}`,
			true,
		},
	} {
		got := newPod(t, jobWith(c.template)).Spec.InitContainers[0].SecurityContext.RunAsNonRoot
		if (got != nil && *got) != c.want {
			t.Errorf("%s: runAsNonRoot is %v, want %v", name, got != nil && *got, c.want)
		}
	}
}

func TestOIDCVolume(t *testing.T) {
	mounted := func(t *testing.T, template string) (name string) {
		t.Helper()
		job := jobWith(template)
		job.OIDC = secret.New("token")
		for _, mount := range newPod(t, job).Spec.Containers[0].VolumeMounts {
			if mount.MountPath == oidcDirectory {
				return mount.Name
			}
		}
		return ""
	}
	if name := mounted(t, ""); name != oidcVolume {
		t.Errorf("got mounted volume %q, want %q", name, oidcVolume)
	}
	own := `{"spec": {"volumes": [{"name": "own", "emptyDir": {}}], "containers": [{"name": "pulumi-workflow",
		"volumeMounts": [{"name": "own", "mountPath": "/mnt/pulumi"}]}]}}`
	if name := mounted(t, own); name != "own" {
		t.Errorf("got mounted volume %q, want volume own of the template", name)
	}
	pod := newPod(t, testJob())
	if len(pod.Spec.Volumes) != 3 {
		t.Errorf("a job without a token has %d volumes, want 3", len(pod.Spec.Volumes))
	}
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.Name != filesVolume && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			t.Errorf("volume %s is on disk, want it in memory", v.Name)
		}
	}
}
