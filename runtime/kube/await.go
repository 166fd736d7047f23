package kube

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
)

// starting is the start of one job.
type starting struct {
	executor *Executor
	job      *runtime.Job
	setup    *runtime.Setup
	sub      *subscription
	created  *corev1.Pod // nil until the Pod is created
	deadline time.Time
	delivery delivery
	sender   handoff.Sender
	carrier  object // carries the handoff; nil until it is created

	objectTried  bool      // the object with the handoff may exist
	sendTried    bool      // the handoff may have arrived
	delivered    bool      // the handoff may be in the Pod: no response has excluded it
	sent         bool      // the handoff has arrived: the job may run
	endingSince  time.Time // since when a Pod with its handoff is being ended; zero before
	versions     int       // number of handoffs that were sealed
	linesPending bool      // step 0 has lines that the sent handoff lacks
	settled      time.Time // when the lines that a later handoff repeats are sent; zero if there are none
	outageLogged bool      // step 0 contains the message that the watch is down

	look        look
	logged      map[string]bool // keys of logOnce
	unsentLines bool            // logOnce has added lines

	stuckSince time.Time // start of the current stuck period; zero if the Pod is not stuck
	pullSince  time.Time // since when an image cannot be pulled; zero without this problem
	pullError  diagnosis // of the last attempt to pull an image
}

// awaitStart sends the handoff when the Pod's key is known, and blocks until the job's
// container has started. It returns nil:
//
//   - when the container has started, or may have started;
//   - when ctx ends after the handoff was sent, if another agent will adopt the job, or if the
//     job may run. The caller then stops the job with its grace period.
//
// It returns an error if the Pod cannot start, or does not start in time. While the watch
// is down, a Pod with a handoff does not time out, because its job may run. If the watch no
// longer shows the Pod, awaitStart gets the Pod, because a list can be outdated.
//
// For example, a Pod whose image is pulled: the watch shows it without a key, then with a key
// (the init container ran, so the handoff is sent), then with a container that waits for its
// image (step 0 gets the reason), and then with a container that has started.
func (s *starting) awaitStart(ctx context.Context) error {
	for {
		now, gone, changed := s.sub.current()
		if now != nil && now.node != "" && now.uid == string(s.created.UID) && !now.hasStarted() {
			s.logOnce("node", "Pod assigned to node %s", now.node)
		}
		switch {
		case now == nil: // the watch has not shown it yet
		case now.uid == string(s.created.UID) && isLost(now) && s.neverRan(now):
			return &lostError{diagnose(now).cause}
		case s.sent && now.uid == string(s.created.UID) && now.hasStarted():
			return nil
		case s.sent && now.uid == string(s.created.UID) && !gone && mayHaveRun(now):
			if !s.ending(now) {
				return nil
			}
		case gone || now.uid != string(s.created.UID):
			if err := s.podDeleted(ctx, now); err != nil {
				return err
			}
		case now.key != "" && (!s.sent || s.linesPending) && !now.finished():
			if err := s.send(ctx, now.key); err != nil {
				return err
			}
			continue // the Pod may have changed during the request
		case !now.hasStarted() || now.finished():
			if err := s.checkProgress(ctx, now); err != nil {
				return err
			}
			if s.linesPending && now.key != "" && !now.finished() {
				continue
			}
		}
		timer := time.NewTimer(s.nextCheck())
		select {
		case <-changed:
		case <-timer.C:
			switch {
			case s.remaining() > 0:
			case !s.endingSince.IsZero(): // the job may have run
				return nil
			case s.sent && s.executor.pods.health() != nil: // the job may run
				s.deadline, s.stuckSince, s.pullSince = time.Now().Add(outageGrace), time.Time{}, time.Time{}
			default:
				return s.timeoutError(ctx, now)
			}
			if err := s.logOutage(ctx); err != nil {
				return err
			}
		case <-s.executor.timeOut:
			s.deadline = time.Now()
		case <-ctx.Done():
		}
		timer.Stop()
		switch {
		case ctx.Err() == nil:
		case s.sent && s.executor.LeavesJobs(), s.mayRun():
			return nil
		default:
			return context.Cause(ctx)
		}
	}
}

// mayRun reports whether the job may run: the Pod has its handoff, and the watch shows that the
// job's container has started, or that the Pod is being ended, or the watch is down.
func (s *starting) mayRun() bool {
	now, _, _ := s.sub.current()
	started := now != nil && now.uid == string(s.created.UID) && now.hasStarted()
	return s.sent && (started || !s.endingSince.IsZero() || s.executor.pods.health() != nil)
}

// podDeleted returns an error if the Pod was deleted.
func (s *starting) podDeleted(ctx context.Context, last *state) error {
	found, err := s.executor.client.get(ctx, s.created.Namespace, s.created.Name)
	if err != nil && !isNotFound(err) || err == nil && found.UID == s.created.UID {
		return nil // the Pod may exist
	}
	d := diagnose(last)
	if d.outlook != failed {
		d.cause = cause{message: deletedText}
	}
	if s.neverRan(last) {
		return &lostError{d.cause}
	}
	return fmt.Errorf("start the Pod: %s", d)
}

// logOutage adds a line to step 0 if the watch is down.
func (s *starting) logOutage(ctx context.Context) error {
	problem := s.executor.pods.health()
	if problem == nil || s.outageLogged || s.sendTried { // the runner owns the log after the handoff
		s.outageLogged = problem != nil
		return nil
	}
	s.outageLogged = true
	s.setup.Log("Waiting for the cluster: %v", s.executor.explain("watch the Pod", problem))
	return s.setup.Flush(ctx)
}

// mayHaveRun reports whether a Pod is being ended from outside. The watch has not shown that
// its job runs, but the Pod has its handoff: the runner may have started and reported the
// failure, because a kubelet reports the start of a container some seconds late. Wait then
// returns how the job ended.
func mayHaveRun(now *state) bool { return !now.endCause().empty() && !notExecuted(now.main) }

// remaining returns the time until the start times out.
func (s *starting) remaining() time.Duration {
	left := time.Until(s.deadline)
	if !s.stuckSince.IsZero() {
		left = min(left, time.Until(s.stuckSince.Add(s.stuckLimit())))
	}
	if !s.pullSince.IsZero() {
		left = min(left, time.Until(s.pullSince.Add(s.pullLimit())))
	}
	return max(left, 0)
}

// nextCheck returns the time until the start must be checked again, if the Pod does not change.
func (s *starting) nextCheck() time.Duration {
	next := min(s.remaining(), shownPollInterval)
	for _, at := range []time.Time{s.look.at, s.settled} {
		if left := time.Until(at); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

func (s *starting) stuckLimit() time.Duration { return min(s.executor.stuckLimit, startLimit(s.job)) }

func (s *starting) pullLimit() time.Duration {
	return min(cmp.Or(s.job.Tuning.Instance.Kubernetes.ImagePullTimeout, ImagePullTimeout), startLimit(s.job))
}

// checkProgress logs a problem of the Pod in step 0, and returns an error if the Pod has
// failed.
func (s *starting) checkProgress(ctx context.Context, now *state) error {
	if now.main.ended && !notExecuted(now.main) {
		return fmt.Errorf("start the Pod: the runner ended before it received the job: %s", now.main.exitText())
	}
	d := s.diagnose(now)
	if d.outlook == failed {
		return s.startError(now, d)
	}
	s.stuckSince = sinceIf(d.outlook == stuck, s.stuckSince)
	s.pullSince = sinceIf(d.pullFault, s.pullSince)
	urgent := !d.cause.empty() && s.logOnce(d.key(), "Waiting for the Pod to start: %s", d)
	if s.look.due(now) {
		s.logEvents(ctx, d)
		urgent = true
	}
	s.showLines(ctx)
	if !urgent || !s.unsentLines {
		return nil
	}
	s.unsentLines = false
	return s.flush(ctx)
}

// sinceIf returns since, or the current time if since is zero. If the condition is false, it returns
// zero.
func sinceIf(condition bool, since time.Time) time.Time {
	switch {
	case !condition:
		return time.Time{}
	case since.IsZero():
		return time.Now()
	}
	return since
}

// diagnose does what the function diagnose does. In addition, it repeats the error of the last pull
// while the kubelet waits before the next one: older kubelets then report no error.
func (s *starting) diagnose(now *state) diagnosis {
	d := diagnose(now)
	switch {
	case d.reason == errImagePull:
		s.pullError = d
	case d.reason == imagePullBackOff && s.pullError.reason != "" && !strings.Contains(d.message, errImagePull):
		return s.pullError
	}
	return d
}

// flush sends the lines of step 0. After the handoff, the runner sends them: a new handoff
// with the new lines replaces the first one. Nodes may not refresh a handoff in a Secret; then the
// lines are sent only if the start fails.
func (s *starting) flush(ctx context.Context) error {
	if s.sendTried {
		s.linesPending = s.delivery != inSecret
		return nil
	}
	return s.setup.Flush(ctx)
}

// showLines sends the lines of a replaced handoff to the service, if no runner can have read an
// earlier one. A user sees them while an image is pulled. An error changes nothing: the runner sends
// the same lines.
func (s *starting) showLines(ctx context.Context) {
	if s.settled.IsZero() || time.Now().Before(s.settled) || s.executor.pods.health() != nil {
		return
	}
	s.settled = time.Time{}
	if err := s.setup.FlushHandoff(ctx); err != nil {
		s.executor.log.Debug("cannot send lines of step 0", "pod", s.created.Name, "error", err)
	}
}

func (s *starting) timeoutError(ctx context.Context, now *state) error {
	e := s.executor
	if err := e.pods.health(); err != nil {
		return e.explain("watch the Pod", err)
	}
	if now == nil {
		return fmt.Errorf("start the Pod: the watch did not show the new Pod within %s", startLimit(s.job))
	}
	d := s.diagnose(now)
	if d.cause.empty() {
		d.cause = e.newestWarning(ctx, s.created)
	}
	limit := startLimit(s.job)
	switch {
	case d.outlook == stuck && time.Since(s.stuckSince) >= s.stuckLimit():
		limit = s.stuckLimit()
	case d.pullFault && time.Since(s.pullSince) >= s.pullLimit():
		limit = s.pullLimit()
	}
	return fmt.Errorf("%w (waited for %s)", s.startError(now, d), limit)
}

// startError returns the error for a Pod that cannot start its job. It wraps
// [runtime.ErrJobFault] if the cause is an image that the job selected.
func (s *starting) startError(now *state, d diagnosis) error {
	if d.imageFault && s.job.Tuning.Instance.OverrideImage == "" && now.image == s.job.Definition.Image.Reference {
		return runtime.NewJobFault("start the Pod with the image %s: %s", now.image, d)
	}
	err := fmt.Errorf("start the Pod: %s", d)
	switch {
	case d.imageFault, d.pullFault:
		return runtime.FailureImage.Wrap(err)
	case d.cause == now.unscheduled && !d.cause.empty():
		return runtime.FailureUnschedulable.Wrap(err)
	}
	return err
}
