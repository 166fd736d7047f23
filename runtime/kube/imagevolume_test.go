package kube

import (
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime"
)

// TestImageVolumeOnCluster uses a cluster whose container runtime has no image volumes. The
// API server supports image volumes, so a dry run succeeds. A start fails, and its error
// contains imageVolumeHint.
func TestImageVolumeOnCluster(t *testing.T) {
	n := onCluster(t)
	for _, setting := range []string{"sealed", handoffConfigMap} {
		job := testJob()
		useTestImages(job)
		job.Tuning.Instance.Kubernetes.Runner, job.Tuning.Instance.Kubernetes.Handoff = runnerImage, setting
		if err := openExecutor(t, n.Agent, n.Name).Check(t.Context(), job.Tuning); err != nil {
			t.Errorf("%s: the API server refuses the Pod: %v", setting, err)
		}
	}
	e := openExecutor(t, n.Agent, n.Name)
	e.stuckLimit = briefFault
	_, log, err := startJob(t, n, e, func(job *runtime.Job) { job.Tuning.Instance.Kubernetes.Runner = runnerImage })
	if err == nil || !strings.Contains(log, imageVolumeHint) {
		t.Errorf("got %v; log of step 0:\n%s", err, log)
	}
}
