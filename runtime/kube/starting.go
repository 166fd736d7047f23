package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// Timeouts for sending the handoff. The runner waits ten minutes for it.
const (
	minSendTime = 50 * time.Second               // even if the start has less time left
	maxSendTime = 9*time.Minute + 30*time.Second // even if the start has more time left
	resendLimit = 10 * time.Second               // for a handoff with more lines, after a first handoff has arrived

	// outageGrace is how long the watch may take to show a started Pod after an outage that
	// was longer than the start timeout.
	outageGrace = 30 * time.Second
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
	carrier  object // carries a handoff that is not sealed; nil if there is none

	objectTried  bool      // the object with the handoff may exist
	sendTried    bool      // the handoff may have arrived
	sent         bool      // the handoff has arrived: the job may run
	linesPending bool      // step 0 has lines that the sent handoff lacks
	outageLogged bool      // step 0 contains the message that the watch is down
	loggedReason string    // reason of the last problem in step 0
	stuckSince   time.Time // start of the current stuck period; zero if the Pod is not stuck
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
func (s *starting) awaitStart(ctx context.Context) error {
	for {
		// Act on the state that the watch shows.
		now, gone, changed := s.sub.current()
		switch {
		case now == nil: // the watch has not shown it yet
		case s.sent && now.uid == string(s.created.UID) && (now.hasStarted() || !gone && mayHaveRun(now)):
			return nil
		case gone || now.uid != string(s.created.UID):
			if err := s.checkDeleted(ctx, now); err != nil {
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

		// Wait for a change, a timeout or the end of ctx.
		timer := time.NewTimer(min(s.remaining(), shownPollInterval))
		select {
		case <-changed:
		case <-timer.C:
			switch {
			case s.remaining() > 0:
			case s.sent && s.executor.pods.health() != nil: // the job may run
				s.deadline, s.stuckSince = time.Now().Add(outageGrace), time.Time{}
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
// job's container has started, or the watch is down.
func (s *starting) mayRun() bool {
	now, _, _ := s.sub.current()
	started := now != nil && now.uid == string(s.created.UID) && now.hasStarted()
	return s.sent && (started || s.executor.pods.health() != nil)
}

// checkDeleted returns an error if the Pod was deleted.
func (s *starting) checkDeleted(ctx context.Context, last *state) error {
	found, err := s.executor.client.get(ctx, s.created.Namespace, s.created.Name)
	if err != nil && !isNotFound(err) || err == nil && found.UID == s.created.UID {
		return nil // the Pod may exist
	}
	d := diagnose(last)
	if d.outlook != failed {
		d.cause = cause{message: deletedText}
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
	return max(left, 0)
}

// stuckLimit returns how long the Pod may be stuck.
func (s *starting) stuckLimit() time.Duration { return min(s.executor.stuckLimit, startLimit(s.job)) }

// checkProgress logs a problem of the Pod in step 0, and returns an error if the Pod has
// failed.
func (s *starting) checkProgress(ctx context.Context, now *state) error {
	if now.main.ended && !notExecuted(now.main) {
		return fmt.Errorf("start the Pod: the runner ended before it received the job: %s", now.main.exitText())
	}
	d := diagnose(now)
	switch {
	case d.outlook == failed:
		return s.startError(now, d)
	case d.outlook != stuck:
		s.stuckSince = time.Time{}
	case s.stuckSince.IsZero():
		s.stuckSince = time.Now()
	}
	if d.cause.empty() || d.cause.reason == s.loggedReason {
		return nil
	}
	s.loggedReason = d.cause.reason
	s.setup.Log("Waiting for the Pod to start: %s", d)
	return s.flush(ctx)
}

// flush sends the lines of step 0. After the handoff, the runner sends them: a new handoff
// with the new lines replaces a handoff in an annotation. If an object carries the handoff,
// the lines are sent only if the start fails.
func (s *starting) flush(ctx context.Context) error {
	if s.sendTried {
		s.linesPending = s.delivery == inAnnotation
		return nil
	}
	return s.setup.Flush(ctx)
}

// timeoutError returns the error for a Pod that has not started in time.
func (s *starting) timeoutError(ctx context.Context, now *state) error {
	e := s.executor
	if err := e.pods.health(); err != nil {
		return e.explain("watch the Pod", err)
	}
	if now == nil {
		return fmt.Errorf("start the Pod: the watch did not show the new Pod within %s", startLimit(s.job))
	}
	d := diagnose(now)
	if d.cause.empty() {
		d.cause = e.newestWarning(ctx, s.created)
	}
	limit := startLimit(s.job)
	if d.outlook == stuck {
		limit = s.stuckLimit()
	}
	return fmt.Errorf("%w (waited for %s)", s.startError(now, d), limit)
}

// startError returns the error for a Pod that cannot start its job. It wraps
// [runtime.ErrJobFault] if the cause is an image that the job selected.
func (s *starting) startError(now *state, d diagnosis) error {
	if d.imageFault && s.job.Tuning.Instance.OverrideImage == "" && now.image == s.job.Definition.Image.Reference {
		return jobFault("start the Pod with the image %s: %s", now.image, d)
	}
	return fmt.Errorf("start the Pod: %s", d)
}

// send sends the handoff, or a later version with more lines of step 0. If a later version
// does not arrive, the job continues with the earlier one.
func (s *starting) send(ctx context.Context, key string) error {
	s.linesPending = false
	text, err := s.setup.Handoff(ctx, s.executor.root(s.created.Name))
	switch {
	case err == nil:
	case s.sent: // the job may run; if it was cancelled, ctx ends soon, and awaitStart returns
		return nil
	default:
		return err
	}
	if err := s.sendSealed(ctx, key, text); err != nil && !s.sent {
		return err
	}
	killpoint.Hit(killpoint.HandoffSent)
	s.sent = true
	return nil
}

// sendSealed seals a handoff to the key and writes it into an annotation of the Pod.
func (s *starting) sendSealed(ctx context.Context, key string, text []byte) error {
	// Seal the handoff, and create its ConfigMap if it is large.
	e := s.executor
	limit := handoff.MaxAnnotation
	if s.delivery != inAnnotation {
		limit = handoff.MaxObject
	}
	sealed, err := handoff.Seal(key, recipientOf(s.created), text, limit)
	if err != nil {
		return sendError(err)
	}
	s.sendTried = true
	until := time.Now().Add(min(max(time.Until(s.deadline), minSendTime), maxSendTime))
	if s.sent {
		until = time.Now().Add(resendLimit)
	}
	if s.delivery != inAnnotation {
		// Changing the annotation makes the kubelet read the ConfigMap at once.
		if err := s.createSealed(ctx, sealed, until); err != nil {
			return err
		}
		killpoint.Hit(killpoint.HandoffStored)
		sealed = s.delivery.annotationValue()
	}

	// Write the annotation, and retry until the timeout.
	lastReason, retries := "", retryPolicy{refusalLimit: min(refusalLimit, e.stuckLimit)}
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		err := s.tryWrite(ctx, sealed)
		delay := wait
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errAdopted) && e.records.Load().has(s.job.ID): // the other agent starts or reports the job
			return fmt.Errorf("send the job to its Pod: %w: %w", err, runtime.ErrGone)
		case errors.Is(err, errAdopted):
			return fmt.Errorf("send the job to its Pod: %w", err)
		case apierrors.IsConflict(err) && !fromProxy(err): // the kubelet updates the status often during a start
			delay = wait / 10
		case !retries.allows(err):
			return e.explain("send the job to its Pod", err)
		case lastReason != err.Error() && !s.sent:
			lastReason = err.Error()
			// Do not flush: after the handoff, the log belongs to the runner.
			s.setup.Log("The job cannot be sent to its Pod yet, retrying: %s", tail(lastReason))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(delay, max(time.Until(until), 0))):
		}
		if time.Now().After(until) {
			return e.explain("send the job to its Pod", err)
		}
	}
}

// createSealed creates the ConfigMap that carries a sealed handoff.
func (s *starting) createSealed(ctx context.Context, sealed string, until time.Time) error {
	e := s.executor
	o := s.delivery.object(e.objectMeta(s.job, objectOf(s.created.Name), s.deadline), []byte(sealed))
	o.SetOwnerReferences(ownedBy(s.created))
	s.objectTried = true
	retries := retryPolicy{refusalLimit: min(refusalLimit, e.stuckLimit)}
	if err := e.createObject(ctx, configMaps, o, until, retries); err != nil {
		return e.explainObject("create", configMaps, err)
	}
	return nil
}

// tryWrite makes one attempt to write the annotation. It uses the newest Pod that the watch
// has shown. After a conflict it waits until the watch shows the change. If the watch does
// not show the change, or has not shown the Pod at all, it gets the Pod.
func (s *starting) tryWrite(ctx context.Context, sealed string) error {
	ctx, cancel := detached(ctx, callLimit)
	defer cancel()
	e, version := s.executor, ""
	if pod := s.sub.object(); pod != nil {
		err := e.update(ctx, pod, sealed)
		if !apierrors.IsConflict(err) {
			return err
		}
		version = pod.ResourceVersion
	}
	pod := s.awaitNewer(ctx, version)
	if pod == nil {
		found, err := e.client.get(ctx, e.namespace, s.created.Name)
		if err != nil {
			return err
		}
		pod = found
	}
	if pod.UID != s.created.UID {
		return errors.New(deletedText)
	}
	return e.update(ctx, pod, sealed)
}

// newerLimit is how long awaitNewer waits after a conflict. Usually the watch shows the
// change some milliseconds later.
const newerLimit = 200 * time.Millisecond

// awaitNewer returns the Pod when the watch shows another version of it. It returns nil
// after newerLimit, or if version is empty.
func (s *starting) awaitNewer(ctx context.Context, version string) *corev1.Pod {
	if version == "" {
		return nil
	}
	timer := time.NewTimer(newerLimit)
	defer timer.Stop()
	for {
		_, _, changed := s.sub.current()
		if pod := s.sub.object(); pod != nil && pod.ResourceVersion != version {
			return pod
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// errAdopted is returned if another agent has adopted the Pod. That agent removes the Pod.
var errAdopted = errors.New("another agent has adopted the Pod, because this agent's own Pod no longer exists")

// update writes a sealed handoff into the Pod. It returns errAdopted if another agent has
// adopted the Pod, unless the Pod already has a handoff from an earlier request whose
// response was lost.
func (e *Executor) update(ctx context.Context, pod *corev1.Pod, sealed string) error {
	switch o := ownerOf(pod); {
	case !e.self.known() || o.UID == "" || o == e.self.owner:
	case pod.Annotations[annotationHandoff] != "":
		return nil
	default:
		return errAdopted
	}
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationHandoff] = sealed
	_, err := e.client.update(ctx, pod)
	return err
}
