package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// The container runtime of the cluster has no image volumes. The API server knows them,
// so the Pod is checked by a dry run, and what a user of such a runtime sees.
func TestImageVolumeOnACluster(t *testing.T) {
	n := onCluster(t)
	for _, setting := range []string{"sealed", handoffConfigMap} {
		job := testJob()
		place(job)
		job.Tuning.Place.Kubernetes.Runner, job.Tuning.Place.Kubernetes.Handoff = runnerImage, setting
		if err := open(t, n.Agent, n.Name).Check(t.Context(), job.Tuning); err != nil {
			t.Errorf("%s: the API server refuses the Pod: %v", setting, err)
		}
	}
	e := open(t, n.Agent, n.Name)
	e.stuckLimit = 3 * time.Second
	_, log, err := startOn(t, n, e, func(job *runtime.Job) { job.Tuning.Place.Kubernetes.Runner = runnerImage })
	if err == nil || !strings.Contains(log, imageVolumeHint) {
		t.Errorf("got %v; step 0 says\n%s", err, log)
	}
}
