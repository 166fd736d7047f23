package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

const maxReplacements = 3 // of the Pod of one start

// lostError is the error of a start whose Pod is lost although nothing of its job has run: another
// Pod may start the job.
type lostError struct{ why cause }

// Error implements error.
func (e *lostError) Error() string { return "start the Pod: " + e.why.String() }

// lossReasons are the reasons of a Pod that a kubelet has refused or ended because of its node. A reason that
// begins with OutOf, such as OutOfcpu, is one too. Another Pod may be assigned to another node.
var lossReasons = []string{
	"Evicted", "UnexpectedAdmissionError", "Preempting", "NodeAffinity", "TopologyAffinityError",
	"NodeShutdown", "Shutdown", "Terminated",
}

// isLost reports whether a Pod was ended, or is being ended, by something other than its job: its
// node, the scheduler, a drain or a user.
func isLost(now *state) bool {
	return slices.Contains(lossReasons, now.reason) || strings.HasPrefix(now.reason, "OutOf") ||
		now.reason == "" && !now.endCause().empty()
}

// neverRan reports whether nothing of the job can have run in a lost Pod:
//
//   - the Pod did not get its handoff; or
//   - its kubelet reports that the Pod has ended, and that the job's container was not started. A
//     kubelet that does not report may have started it. Nor does a deletion with a grace period of
//     zero prove anything.
func (s *starting) neverRan(now *state) bool {
	if !s.delivered {
		return true
	}
	unreported := now.nodeLost || now.disruption.reason == "DeletionByPodGC" ||
		now.disruption.reason == "DeletionByTaintManager"
	started := now.main.running || !now.main.started.IsZero() ||
		now.main.ended && now.main.cause.reason != containerStatusUnknown
	return now.phase == corev1.PodFailed && !unreported && !started
}

// ending reports whether to wait for the last report of the kubelet about a Pod that is being ended:
// it shows whether the job's container was started. The wait is as long as the kubelet may take.
func (s *starting) ending(now *state) bool {
	if now.phase == corev1.PodFailed || now.phase == corev1.PodSucceeded {
		return false
	}
	if s.endingSince.IsZero() {
		s.endingSince = time.Now()
	}
	return time.Since(s.endingSince) < time.Duration(now.stopTime)*time.Second+overdueLimit
}

// Start creates the job's Pod and sends it the handoff; see startPod. If the Pod is lost before
// anything of its job has run, for example because its node is drained, Start replaces it by a Pod
// with another name and another key, at most maxReplacements times within the start timeout.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (id string, err error) {
	setup.Log("Preparing a Pod for this job in namespace %s of the cluster at %s",
		e.namespace, e.client.host)
	deadline := time.Now().Add(startLimit(job))
	for n := 1; ; n++ {
		id, err = e.startPod(ctx, job, setup, deadline)
		if !replaceable(err) || n > maxReplacements || ctx.Err() != nil || time.Until(deadline) <= createBackoff.First {
			return id, err
		}
		setup.Log("The Pod was lost before the job started, and another Pod replaces it (%d of at most %d): %v",
			n, maxReplacements, err)
		if err := setup.Flush(ctx); err != nil {
			return "", err
		}
		if !runtime.Sleep(ctx, nil, createBackoff.First) {
			return "", context.Cause(ctx)
		}
	}
}

// cleanUpAfter removes what a failed start has left, and returns the error of the start.
func (s *starting) cleanUpAfter(ctx context.Context, pod *corev1.Pod, failure error) error {
	// A Pod that another agent has adopted is removed by that agent, which first adopts the
	// job's record: the cluster deletes the record with the Pod.
	if errors.Is(failure, records.ErrAdopted) {
		return failure
	}
	failure = s.lost(ctx, failure)
	replaced := replaceable(failure)
	if replaced {
		s.setup.Withdraw(ctx)
	}
	err := s.cleanUp(ctx, pod)
	switch {
	case err == nil:
		return failure
	case replaced: // no other Pod starts the job beside one that may exist
		return fmt.Errorf("%v\n%w", failure, err)
	}
	return errors.Join(failure, err)
}

// replaceable reports whether another Pod may start the job after a start that failed with err. An
// agent whose job may belong to another agent does not start it again.
func replaceable(err error) bool {
	return errors.As(err, new(*lostError)) && !errors.Is(err, records.ErrAdopted)
}
