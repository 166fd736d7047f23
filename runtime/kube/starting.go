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
)

// Times of sending the handoff. The runner waits for it for ten minutes.
const (
	sendAtLeast = 50 * time.Second               // if a start has less time left
	sendAtMost  = 9*time.Minute + 30*time.Second //
	sendAgain   = 10 * time.Second               // one with later lines, if an earlier one has arrived

	// For the watch to show a Pod that has its handoff, after an outage in which the
	// start's limit has ended.
	outageGrace = 30 * time.Second
)

// starting is a job that is being started.
type starting struct {
	executor *Executor
	job      *runtime.Job
	setup    *runtime.Setup
	seen     *subscription
	created  *corev1.Pod // nil before it is
	deadline time.Time
	delivery delivery
	carrier  object // that carries a handoff which is not sealed; nil if there is none

	carried bool      // an object may carry the handoff
	tried   bool      // to send the handoff: it may have arrived
	sent    bool      // the handoff has arrived: the job may run
	later   bool      // step 0 has lines that the handoff lacks
	missing bool      // the log of step 0 has that the state of the Pod is not known
	said    string    // reason of the last trouble that the log of step 0 has
	stuckAt time.Time // since when the Pod is stuck; zero if it is not
}

// await sends the handoff as soon as there is a key for it, and returns nil when the
// job's container has started, or may have. It also returns nil when ctx ends after the
// handoff was sent, if jobs are left to other agents. It fails when the Pod cannot start,
// or does not start in time; one that has its handoff is not late while the watch is
// down, because its job may run. A Pod that the watch does not show any more is asked
// for, because a list can be an old one.
func (s *starting) await(ctx context.Context) error {
	for {
		// Act on what the watch shows.
		now, gone, changed := s.seen.now()
		switch {
		case now == nil: // the watch has not shown it yet
		case s.sent && now.uid == string(s.created.UID) && (now.started() || !gone && mayHaveRun(now)):
			return nil
		case gone || now.uid != string(s.created.UID):
			if err := s.vanished(ctx, now); err != nil {
				return err
			}
		case now.key != "" && (!s.sent || s.later) && !now.over():
			if err := s.send(ctx, now.key); err != nil {
				return err
			}
			continue // it may have changed meanwhile
		case !now.started() || now.over():
			if err := s.weigh(ctx, now); err != nil {
				return err
			}
			if s.later && now.key != "" && !now.over() {
				continue
			}
		}

		// Wait for a change, a limit or the end of ctx.
		timer := time.NewTimer(min(s.left(), lookSeldom))
		select {
		case <-changed:
		case <-timer.C:
			switch {
			case s.left() > 0:
			case s.sent && s.executor.pods.health() != nil: // the job may run
				s.deadline, s.stuckAt = time.Now().Add(outageGrace), time.Time{}
			default:
				return s.late(ctx, now)
			}
			if err := s.weighSilence(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
		}
		timer.Stop()
		switch {
		case ctx.Err() == nil:
		case s.sent && s.executor.LeavesJobs(): // the job may run, and another agent adopts it
			return nil
		default:
			return context.Cause(ctx)
		}
	}
}

// vanished returns an error if the Pod does not exist any more.
func (s *starting) vanished(ctx context.Context, last *state) error {
	there, err := s.executor.client.get(ctx, s.created.Namespace, s.created.Name)
	if err != nil && !absent(err) || err == nil && there.UID == s.created.UID {
		return nil // it may exist
	}
	v := judge(last)
	if v.outlook != failed {
		v.trouble = trouble{message: deletedText}
	}
	return fmt.Errorf("start the Pod: %s", v)
}

// weighSilence reports in the log of step 0 that the state of the Pod is not known.
func (s *starting) weighSilence(ctx context.Context) error {
	problem := s.executor.pods.health()
	if problem == nil || s.missing || s.tried { // from the handoff on, the log is the runner's
		s.missing = problem != nil
		return nil
	}
	s.missing = true
	s.setup.Say("Waiting for the cluster: %v", s.executor.explain("watch the Pod", problem))
	return s.setup.Flush(ctx)
}

// mayHaveRun reports whether a Pod that has its handoff is about to end before its job
// was seen to run. The runner may have begun, and have reported that: a kubelet reports
// the start of a container up to some seconds late. What follows the job finds out how it
// ended.
func mayHaveRun(now *state) bool { return !now.ending().none() && !notExecuted(now.main) }

// left returns the time until the Pod is late.
func (s *starting) left() time.Duration {
	left := time.Until(s.deadline)
	if !s.stuckAt.IsZero() {
		left = min(left, time.Until(s.stuckAt.Add(s.stuckLimit())))
	}
	return max(left, 0)
}

// stuckLimit returns how long the Pod may be stuck.
func (s *starting) stuckLimit() time.Duration { return min(s.executor.stuckLimit, startLimit(s.job)) }

// weigh reports trouble in the log of step 0, and returns an error for a Pod that
// has failed.
func (s *starting) weigh(ctx context.Context, now *state) error {
	if now.main.ended && !notExecuted(now.main) {
		return fmt.Errorf("start the Pod: the runner ended before it had the job: %s", now.main.ending())
	}
	v := judge(now)
	switch {
	case v.outlook == failed:
		return s.fault(now, v)
	case v.outlook != stuck:
		s.stuckAt = time.Time{}
	case s.stuckAt.IsZero():
		s.stuckAt = time.Now()
	}
	if v.trouble.none() || v.trouble.reason == s.said {
		return nil
	}
	s.said = v.trouble.reason
	s.setup.Say("Waiting for the Pod to start: %s", v)
	return s.flush(ctx)
}

// flush sends the lines of step 0. From the handoff on, the runner sends them: a handoff
// in an annotation is replaced by one that has them, and one in an object keeps them back.
func (s *starting) flush(ctx context.Context) error {
	if s.tried {
		s.later = s.delivery.resource == ""
		return nil
	}
	return s.setup.Flush(ctx)
}

// late returns the error for a Pod that has not started in time.
func (s *starting) late(ctx context.Context, now *state) error {
	e := s.executor
	if err := e.pods.health(); err != nil {
		return e.explain("watch the Pod", err)
	}
	if now == nil {
		return fmt.Errorf("start the Pod: it was created, and the watch has not shown it within %s", startLimit(s.job))
	}
	v := judge(now)
	if v.trouble.none() {
		v.trouble = e.warning(ctx, s.created)
	}
	limit := startLimit(s.job)
	if v.outlook == stuck {
		limit = s.stuckLimit()
	}
	return fmt.Errorf("%w (waited for %s)", s.fault(now, v), limit)
}

// fault returns the error for a Pod that cannot start its job. It is the job's own
// if it is about an image that the job has chosen.
func (s *starting) fault(now *state, v verdict) error {
	if s.job.Tuning.Place.Kubernetes.Runner == runnerImage && aboutImageVolume(v.trouble.reason) {
		return fmt.Errorf("start the Pod: %s (%s)", v, imageVolumeHint)
	}
	if v.own && s.job.Tuning.Place.OverrideImage == "" && now.image == s.job.Definition.Image.Reference {
		return jobFault("start the Pod with the image %s: %s", now.image, v)
	}
	return fmt.Errorf("start the Pod: %s", v)
}

// send makes the handoff, or one with later lines of step 0, and sends it. That the
// latter does not arrive is no reason to fail the job, which has the earlier one.
func (s *starting) send(ctx context.Context, key string) error {
	text, err := s.setup.Handover(ctx, s.executor.root(s.created.Name))
	switch {
	case err == nil:
	case s.sent && ctx.Err() != nil: // await decides whether the job goes on
		return nil
	default:
		return err
	}
	s.later = false
	if err := s.sendText(ctx, key, text); err != nil && !s.sent {
		return err
	}
	s.sent = true
	return nil
}

// sendText seals a handoff to the key and writes it into an annotation of the Pod.
func (s *starting) sendText(ctx context.Context, key string, text []byte) error {
	// Seal it.
	e := s.executor
	limit := handoff.MaxAnnotation
	if s.delivery.resource != "" {
		limit = handoff.MaxObject
	}
	sealed, err := handoff.Seal(key, recipientOf(s.created), text, limit)
	if err != nil {
		return sendError(err)
	}
	s.tried = true
	until := time.Now().Add(min(max(time.Until(s.deadline), sendAtLeast), sendAtMost))
	if s.sent {
		until = time.Now().Add(sendAgain)
	}
	if s.delivery.resource != "" {
		// A change of the annotation makes the kubelet read the ConfigMap at once.
		if err := s.carry(ctx, sealed, until); err != nil {
			return err
		}
		sealed = s.delivery.mark()
	}

	// Write it.
	said, refusals := "", doubt{limit: min(refusalLimit, e.stuckLimit)}
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		err := s.write(ctx, sealed)
		delay := wait
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errAdopted):
			return fmt.Errorf("send the job to its Pod: %w", err)
		case apierrors.IsConflict(err) && !fromProxy(err): // the kubelet reports often just now
			delay = wait / 10
		case !refusals.about(err):
			return e.explain("send the job to its Pod", err)
		case said != err.Error() && !s.sent:
			said = err.Error()
			// Not flushed: from the handoff on, the log is the runner's.
			s.setup.Say("The job cannot be sent to its Pod yet, trying again: %s", shortened(said))
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

// carry creates the ConfigMap that carries a sealed handoff.
func (s *starting) carry(ctx context.Context, sealed string, until time.Time) error {
	e := s.executor
	o := s.delivery.object(e.objectMeta(s.job, objectOf(s.created.Name), s.deadline), []byte(sealed))
	o.SetOwnerReferences(ownedBy(s.created))
	s.carried = true
	refusals := doubt{limit: min(refusalLimit, e.stuckLimit)}
	if err := e.createObject(ctx, s.delivery.resource, o, until, refusals); err != nil {
		return e.explainObject("create", s.delivery.resource, err)
	}
	return nil
}

// write makes one attempt to write the annotation of the handoff. It starts from the
// newest Pod that the watch has shown. After a conflict it waits for the change that the
// watch is about to show; a Pod that the watch does not show is read.
func (s *starting) write(ctx context.Context, sealed string) error {
	ctx, cancel := outliving(ctx, callLimit)
	defer cancel()
	e, version := s.executor, ""
	if pod := s.seen.object(); pod != nil {
		err := e.update(ctx, pod, sealed)
		if !apierrors.IsConflict(err) {
			return err
		}
		version = pod.ResourceVersion
	}
	pod := s.newer(ctx, version)
	if pod == nil {
		there, err := e.client.get(ctx, e.namespace, s.created.Name)
		if err != nil {
			return err
		}
		pod = there
	}
	if pod.UID != s.created.UID {
		return errors.New(deletedText)
	}
	return e.update(ctx, pod, sealed)
}

// newerLimit is how long a change is waited for that caused a conflict. The watch shows
// it some milliseconds later.
const newerLimit = 200 * time.Millisecond

// newer returns the Pod as the watch shows it after a version; nil if it shows no
// other in time, or if there is no version.
func (s *starting) newer(ctx context.Context, version string) *corev1.Pod {
	if version == "" {
		return nil
	}
	late := time.NewTimer(newerLimit)
	defer late.Stop()
	for {
		_, _, changed := s.seen.now()
		if pod := s.seen.object(); pod != nil && pod.ResourceVersion != version {
			return pod
		}
		select {
		case <-changed:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// errAdopted ends a start whose Pod belongs to another agent by now, which removes it.
var errAdopted = errors.New("another agent has adopted the Pod, because this agent's own Pod does not exist any more")

// update writes a sealed handoff into a copy of the Pod, and that to the cluster. A Pod
// that another agent has adopted gets none; one that has a handoff then, of an earlier
// call whose answer was lost, goes on with that.
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
