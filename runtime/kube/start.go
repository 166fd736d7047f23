package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

const (
	createRetry    = 500 * time.Millisecond // after a create that may succeed later; doubles
	createRetryMax = 10 * time.Second       // ceiling of that
	discardLimit   = time.Minute            // for removing what a failed start has made

	// For which an answer that refuses the agent is not believed: a token may have been
	// replaced, and an API server that has just started may not know all Roles.
	refusalLimit = 20 * time.Second
)

// Start creates the job's Pod and sends it the handoff.
//
//  1. The Pod is made from the job, the settings and the template.
//  2. A handoff that is not sealed is put into its object.
//  3. One create makes the Pod. Nothing that its start depends on comes later.
//  4. A handoff that is sealed is sent when the init container has reported its
//     key, and the job's container is waited for.
//
// By default it takes two requests, create and update, beside those of Follow and
// Remove.
func (e *Executor) Start(ctx context.Context, job *runtime.Job, setup *runtime.Setup) (_ string, err error) {
	setup.Say("Preparing the environment of this job: a Pod in namespace %s of the cluster at %s",
		e.namespace, e.client.host)

	// 1. Make the Pod.
	size := setup.Size()
	pod, err := e.podFor(job, setup, size)
	if err != nil {
		return "", err
	}
	if directory := pod.Spec.Containers[0].WorkingDir; directory != "" {
		setup.StartIn(filepath.Join(e.root(pod.Name), directory))
	}
	if err := e.pods.ready(ctx); err != nil {
		return "", e.explain("start the job", err)
	}

	// 2. Create the object that carries the handoff. Whatever happens from here on,
	// nothing stays after an error.
	s := &starting{
		executor: e, job: job, setup: setup, seen: e.pods.subscribe(pod.Name, true),
		deadline: time.Now().Add(startLimit(job)), delivery: deliveryOf(job.Tuning.Place.Kubernetes.Handoff, size),
	}
	defer s.seen.close()
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(ctx, pod))
		}
	}()
	if s.delivery.packed {
		if err := s.deliver(ctx, pod.Name); err != nil {
			return "", err
		}
	}

	// 3. Create the Pod.
	if s.created, err = e.create(ctx, pod, setup, s.deadline); err != nil {
		return "", err
	}
	setup.Say("Pod created: %s", s.created.Name)
	if err := s.complete(ctx); err != nil {
		return "", err
	}

	// 4. Send a sealed handoff, and wait for the job's container.
	if err := s.await(ctx); err != nil {
		return "", err
	}
	return idOf(s.created.Name, string(s.created.UID)), nil
}

// complete creates what belongs to the Pod that was just created.
func (s *starting) complete(ctx context.Context) error {
	e := s.executor
	if err := e.addPullSecret(ctx, s.job, s.setup, s.created, s.deadline); err != nil {
		return err
	}
	if s.carrier != nil {
		e.own(ctx, s.delivery.resource, s.carrier, s.created)
	}
	return s.flush(ctx)
}

// podFor returns the Pod that a job asks for.
func (e *Executor) podFor(job *runtime.Job, setup *runtime.Setup, handoffSize int) (*corev1.Pod, error) {
	place, definition := job.Tuning.Place, job.Definition
	switch {
	case place.OverrideImage != "":
		setup.Say("Using the image %s, which the agent's configuration puts in place of %q",
			place.OverrideImage, definition.Image.Reference)
	case definition.Image.Reference == "":
		return nil, jobFault("the job names no image: set one in the deployment settings of its stack")
	}
	if definition.OS != "" && definition.OS != "linux" {
		return nil, jobFault("the job asks for an image for %q, and this agent runs Linux containers only", definition.OS)
	}
	settings := e.podSettings()
	settings.handoffSize = handoffSize
	pod, err := podOf(job, newName(), settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = e.namespace
	return pod, nil
}

// create creates the Pod. What may succeed later, such as a quota that is used up
// or a server that does not answer, is tried again until the deadline. The name
// makes that safe: a second create of the same Pod is refused.
func (e *Executor) create(
	ctx context.Context, pod *corev1.Pod, setup *runtime.Setup, deadline time.Time,
) (*corev1.Pod, error) {
	warned := map[string]bool{}
	said, refusals := "", doubt{limit: min(refusalLimit, e.stuckLimit)}
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var warnings []string
		limited, cancel := outliving(ctx, callLimit)
		created, err := e.client.create(withWarnings(limited, func(text string) {
			warnings = append(warnings, text)
		}), e.namespace, pod, false)
		cancel()
		for _, text := range warnings {
			if !warned[text] {
				warned[text] = true
				setup.Say("Warning of the cluster: %s", beginning(text))
			}
		}
		if apierrors.IsAlreadyExists(err) { // of an earlier attempt, whose answer was lost
			created, err = e.existing(ctx, pod)
		}
		switch {
		case err == nil:
			return created, nil
		case !refusals.about(err) || time.Until(deadline) < wait:
			return nil, e.explain("create the Pod", err)
		case said != err.Error():
			said = err.Error()
			setup.Say("The Pod cannot be created yet, trying again: %s", shortened(said))
			if err := setup.Flush(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// existing returns the Pod that an earlier create has made.
func (e *Executor) existing(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	there, err := e.client.get(ctx, e.namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	if there.Labels[labelJob] != pod.Labels[labelJob] || there.Labels[labelAgent] != pod.Labels[labelAgent] {
		return nil, fmt.Errorf("there is a Pod %s of another job", pod.Name)
	}
	return there, nil
}

// temporary reports whether a call that failed may succeed later without a change
// of settings.
func temporary(err error) bool {
	status := apierrors.APIStatus(nil)
	switch {
	case !errors.As(err, &status), fromProxy(err): // no answer of the API server
		return true
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
		apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), status.Status().Code >= 500:
		return true
	case apierrors.IsForbidden(err):
		return strings.Contains(err.Error(), "exceeded quota")
	}
	return false
}

// doubt decides whether a failed call is repeated. The zero value repeats no call
// that was refused.
type doubt struct {
	limit time.Duration // for answers that refuse the agent
	since time.Time     // of the first of them in a row
}

// about reports whether the call that failed with err is to be repeated.
func (d *doubt) about(err error) bool {
	switch {
	case temporary(err):
		d.since = time.Time{}
		return true
	case !refusesAgent(err):
		return false
	case d.since.IsZero():
		d.since = time.Now()
	}
	return time.Since(d.since) < d.limit
}

// discard removes what a failed start has made. If no create of the Pod is known to
// have succeeded, one whose answer was lost may have.
func (s *starting) discard(ctx context.Context, pod *corev1.Pod) error {
	e := s.executor
	ctx, cancel := outliving(ctx, discardLimit)
	defer cancel()
	if s.carried {
		half, cancel := context.WithTimeout(ctx, discardLimit/2) // the rest is for the Pod
		err := e.discardObject(half, s.delivery.resource, objectOf(pod.Name))
		cancel()
		if err != nil {
			e.log.Warn("cannot remove the handoff of a failed start", "pod", pod.Name, "error", err)
		}
	}
	created := s.created
	if created == nil {
		there, err := e.existing(ctx, pod)
		switch {
		case absent(err):
			return nil
		case err != nil:
			return e.explain("look for a Pod that a failed start may have left", err)
		}
		created = there
	}
	grace := int64(0)
	if s.tried { // the job may run
		grace = 1
	}
	return e.remove(ctx, created.Name, string(created.UID), grace)
}
