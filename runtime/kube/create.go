package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

const maxStopTime = 1 << 20 // seconds; a longer grace period of a template could overflow a time.Duration

// startPod creates the job's Pod and sends it the handoff.
//
//  1. It builds the Pod from the job, the settings and the template.
//  2. If the handoff is not sealed, it creates the object that carries it.
//  3. It creates the Pod, and directly afterwards the image pull secret, if the job has
//     registry credentials.
//  4. If the handoff is sealed, it sends the handoff when the init container has reported
//     its key. Then it waits for the job's container.
//
// After an error, the Pod and the object are removed. By default a start takes two
// requests: create and update.
func (e *Executor) startPod(
	ctx context.Context, job *runtime.Job, setup *runtime.Setup, deadline time.Time,
) (_ string, err error) {
	// 1. Build the Pod.
	size := setup.HandoffSize()
	sender, err := handoff.NewSender()
	if err != nil {
		return "", err
	}
	pod, err := e.podFor(job, setup, size, sender)
	if err != nil {
		return "", err
	}
	if directory := pod.Spec.Containers[0].WorkingDir; directory != "" {
		setup.SetDirectory(path.Join("/", directory))
	}
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil { // a template may shorten it
		setup.LimitStop(time.Duration(min(*seconds, maxStopTime)) * time.Second)
	}
	if err := e.pods.ready(ctx); err != nil {
		return "", e.explain("start the job", err)
	}

	// 2. Create the object that carries the handoff. From here on, clean up after an error.
	s := &starting{
		executor: e, job: job, setup: setup, sub: e.pods.subscribe(pod.Name, true),
		deadline: deadline, delivery: deliveryOf(job.Tuning.Instance.Kubernetes.Handoff, size),
		sender: sender,
		logged: map[string]bool{},
	}
	defer s.sub.close()
	defer func() {
		if err != nil {
			err = s.cleanUpAfter(ctx, pod, err)
		}
	}()
	if err := e.records.Load().PodOfJob(ctx, job.ID, pod.Name, ""); err != nil {
		return "", err
	}
	if s.delivery == inSecret {
		if err := s.createPacked(ctx, pod.Name); err != nil {
			return "", err
		}
	}

	// 3. Create the Pod.
	created := setup.Measure(runtime.StageCreate)
	s.created, err = e.create(ctx, pod, setup, s.deadline)
	created()
	if err != nil {
		return "", err
	}
	if err := checkLabels(pod, s.created); err != nil {
		return "", e.explain("create the Pod", err)
	}
	killpoint.Hit(killpoint.InstanceCreated)
	defer setup.Measure(runtime.StageStart)()
	setup.Log("Pod created: %s", s.created.Name)
	if err := e.records.Load().PodOfJob(ctx, job.ID, s.created.Name, string(s.created.UID)); err != nil {
		return "", err
	}
	if err := s.addPullSecret(ctx); err != nil {
		return "", err
	}
	if s.carrier != nil {
		e.setOwner(ctx, s.carrier, s.created)
	}
	if err := s.flush(ctx); err != nil {
		return "", err
	}

	// 4. Send a sealed handoff, and wait for the job's container.
	if err := s.awaitStart(ctx); err != nil {
		return "", err
	}
	return idOf(s.created.Name, string(s.created.UID)), nil
}

// podFor returns the Pod of a job, or an error if the job has no image that can run here.
func (e *Executor) podFor(
	job *runtime.Job, setup *runtime.Setup, handoffSize int, sender handoff.Sender,
) (*corev1.Pod, error) {
	place, definition := job.Tuning.Instance, job.Definition
	switch {
	case place.OverrideImage != "":
		setup.Log("Using the image %s from the agent's configuration instead of %q",
			place.OverrideImage, definition.Image.Reference)
	case definition.Image.Reference == "":
		return nil, runtime.NewJobFault("the job names no image: set one in the deployment settings of its stack")
	}
	if definition.OS != "" && definition.OS != "linux" {
		return nil, runtime.NewJobFault("the job requires an image for %q, but this agent runs only Linux containers",
			definition.OS)
	}
	settings := e.podSettings()
	settings.handoffSize, settings.sender = handoffSize, sender.Public()
	pod, err := podOf(job, newName(), settings)
	if err != nil {
		return nil, err
	}
	pod.Namespace = e.namespace
	return pod, nil
}

// create creates the Pod. Errors that may go away, such as a quota that is used up or a
// server that does not answer, are retried until the deadline. Retries are safe because of
// the name: the API server refuses a second Pod with the same name.
func (e *Executor) create(
	ctx context.Context, pod *corev1.Pod, setup *runtime.Setup, deadline time.Time,
) (*corev1.Pod, error) {
	warned := map[string]bool{}
	var created *corev1.Pod
	err := retry{
		deadline: deadline, refusalLimit: e.refusalLimit(), timeOut: e.timeOut,
		explain: func(err error) error { return e.explain("create the Pod", err) },
		log: func(err error) error {
			setup.Log("The Pod cannot be created yet, retrying: %s", tail(err.Error()))
			return setup.Flush(ctx)
		},
	}.do(ctx, func() (err error) {
		var warnings []string
		callCtx, cancel := detached(ctx, callLimit)
		created, err = e.client.create(withWarnings(callCtx, func(text string) {
			warnings = append(warnings, text)
		}), pod, false)
		cancel()
		for _, text := range warnings {
			if !warned[text] {
				warned[text] = true
				setup.Log("Warning from the cluster: %s", head(text))
			}
		}
		if apierrors.IsAlreadyExists(err) { // by an earlier attempt whose response was lost
			created, err = e.existing(ctx, pod)
		}
		return err
	})
	if err != nil { // the client returns an empty Pod
		return nil, err
	}
	return created, nil
}

// errRelabeled is wrapped by the error for a Pod whose labels of the agent have changed at its creation.
var errRelabeled = errors.New("the admission of the cluster changes a label of the agent")

// checkLabels returns an error if the created Pod does not have the labels of the agent with which
// it was sent. Then the watch would not show the Pod, or no other agent would adopt it.
func checkLabels(sent, created *corev1.Pod) error {
	for _, key := range slices.Sorted(maps.Keys(sent.Labels)) {
		own := key == labelManagedBy || strings.HasPrefix(key, reservedKeys)
		if want, got := sent.Labels[key], created.Labels[key]; own && got != want {
			return fmt.Errorf("%w: %s is %q instead of %q: exempt the Pods of jobs from the webhook or policy "+
				"that changes labels", errRelabeled, key, got, want)
		}
	}
	return nil
}

// existing returns the Pod that an earlier attempt of create has created.
func (e *Executor) existing(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	found, err := e.client.get(ctx, e.namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	if found.Labels[labelJob] != pod.Labels[labelJob] || found.Labels[labelAgent] != pod.Labels[labelAgent] {
		return nil, fmt.Errorf("a Pod %s exists and belongs to another job", pod.Name)
	}
	return found, nil
}

// lost adds [runtime.ErrGone] to the error of a failed start if the agent's own Pod no longer exists
// and the job has a record. Another agent may then have adopted the job and removed its Pod
// to start the job again, so this agent must not report the failure.
func (s *starting) lost(ctx context.Context, failure error) error {
	if !s.executor.records.Load().Has(s.job.ID) {
		return failure
	}
	ctx, cancel := detached(ctx, callLimit)
	defer cancel()
	if !s.executor.Replaced(ctx) {
		return failure
	}
	return fmt.Errorf("%w: %w: %w", records.ErrAdopted, runtime.ErrGone, failure)
}

// cleanUp removes the objects of a failed start. If the agent has received no successful
// response to a create of the Pod, cleanUp looks for the Pod: a response may have been lost.
func (s *starting) cleanUp(ctx context.Context, pod *corev1.Pod) error {
	e := s.executor
	ctx, cancel := detached(ctx, discardLimit)
	defer cancel()
	if s.objectTried {
		halfCtx, cancel := context.WithTimeout(ctx, discardLimit/2) // leaves time to remove the Pod
		err := e.discardObject(halfCtx, string(s.delivery), objectOf(pod.Name))
		cancel()
		if err != nil {
			e.log.Warn("cannot remove handoff of failed start", "pod", pod.Name, "error", err)
		}
	}
	if s.created == nil {
		found, err := e.existing(ctx, pod)
		switch {
		case isNotFound(err):
			return nil
		case err != nil:
			return e.explain("find the Pod of a failed start", err)
		}
		s.created = found
	}
	grace := int64(0)
	if s.sendTried { // the job may run
		grace = 1
	}
	return e.remove(ctx, s.created.Name, string(s.created.UID), grace)
}
