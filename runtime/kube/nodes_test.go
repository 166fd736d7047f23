package kube

import (
	"maps"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestNodeSelectorOf(t *testing.T) {
	const os, arch = "kubernetes.io/os", "kubernetes.io/arch"
	affinity := `{"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
		"nodeSelectorTerms": [{"matchExpressions": [
			{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}]}}}}}`
	for name, c := range map[string]struct {
		change func(*runtime.Job)
		want   map[string]string
	}{
		"no architecture": {func(*runtime.Job) {}, map[string]string{os: "linux"}},
		"architecture": {
			func(j *runtime.Job) { j.Definition.Architecture = "arm64" },
			map[string]string{os: "linux", arch: "arm64"},
		},
		"architecture name of the kernel": {
			func(j *runtime.Job) { j.Definition.Architecture = "x86_64" },
			map[string]string{os: "linux", arch: "amd64"},
		},
		"image overridden by the agent": {
			func(j *runtime.Job) { j.Definition.Architecture, j.Tuning.Instance.OverrideImage = "arm64", "other:1" },
			map[string]string{os: "linux"},
		},
		"selector of template": {
			withArchitecture("amd64", `{"spec": {"nodeSelector": {"kubernetes.io/arch": "arm64", "disk": "ssd"}}}`),
			map[string]string{os: "linux", arch: "arm64", "disk": "ssd"},
		},
		"selector removed": {
			withArchitecture("amd64",
				`{"spec": {"nodeSelector": {"kubernetes.io/arch": null, "kubernetes.io/os": null}}}`),
			nil,
		},
		"affinity of template": {withArchitecture("amd64", affinity), map[string]string{os: "linux"}},
	} {
		job := testJob()
		c.change(job)
		if got := newPod(t, job).Spec.NodeSelector; !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// withArchitecture sets the architecture and the template of a job.
func withArchitecture(architecture, template string) func(*runtime.Job) {
	return func(job *runtime.Job) {
		job.Definition.Architecture = architecture
		job.Tuning.Instance.Kubernetes.Template = []byte(template)
	}
}
