package kube

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// dryRunCache holds the result of the last dry run that the cluster answered.
type dryRunCache struct {
	mu          sync.Mutex
	instance    runtime.InstanceSpec // the settings
	refusal     error                // nil if the cluster accepted the Pod
	validUntil  time.Time
	delay       time.Duration // after the last refusal; zero if the Pod was accepted
	lastWarning string        // last logged error about a template
}

// last returns the result of the last dry run, and whether it is valid for these settings.
func (c *dryRunCache) last(instance runtime.InstanceSpec) (refusal error, valid bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusal, time.Now().Before(c.validUntil) && reflect.DeepEqual(c.instance, instance)
}

// note stores the result of a dry run. Each dry run passes through all admission webhooks, so the
// result of a refused one is valid for longer after each refusal.
func (c *dryRunCache) note(instance runtime.InstanceSpec, refusal error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	valid := dryRunCacheTime
	if refusal == nil || !reflect.DeepEqual(c.instance, instance) {
		c.delay = 0
	}
	if refusal != nil {
		c.delay = refusedBackoff.Next(c.delay)
		valid = runtime.Jitter(c.delay)
	}
	c.instance, c.refusal, c.validUntil = instance, refusal, time.Now().Add(valid)
}

// podRemoved makes the next dry run after a refusal soon: the removed Pod may have used up a quota.
func (c *dryRunCache) podRemoved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil {
		c.delay = 0
		if soon := time.Now().Add(refusedBackoff.First); soon.Before(c.validUntil) {
			c.validUntil = soon
		}
	}
}

// Check returns an error if no job could start now:
//
//  1. The API server does not answer. The watch shows this without a request.
//  2. The cluster refuses the Pod of these settings, for example because a right is
//     missing. Check creates the Pod as a dry run.
//  3. The cluster refuses the Secret that carries the handoff, if these settings need one.
//     Check creates the Secret as a second dry run.
//
// Dry runs are repeated when the settings change, once a minute, after a request without a response,
// and after a refusal with the delays of refusedBackoff.
//
// If the cluster refuses the Pod only because of its template, Check logs a warning and
// returns no error: the jobs fail, and their logs contain the message of the API server,
// so that a user can try a template.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	e.client.limits.set(e, tuning.Instance.Kubernetes.QPS)

	// 1. Check the watch.
	if err := e.pods.health(); err != nil {
		return e.explain("watch Pods", err)
	}
	if err := e.pods.ready(ctx); err != nil {
		return e.explain("watch Pods", err)
	}
	if refusal, valid := e.dryRuns.last(tuning.Instance); valid {
		return refusal
	}

	// 2. Create the Pod as a dry run. If the cluster refuses it, try again without its
	//    template.
	pod, err := e.examplePod(tuning)
	if err != nil {
		return err
	}
	_, err = e.dryRun(ctx, pod)
	if place := tuning.Instance.Kubernetes; refusesPod(err) && len(place.Template)+len(place.TemplateRules) > 0 {
		tuning := tuning
		tuning.Instance.Kubernetes.Template, tuning.Instance.Kubernetes.TemplateRules = nil, nil
		if plain, plainErr := e.examplePod(tuning); plainErr == nil {
			if _, plainErr = e.dryRun(ctx, plain); plainErr == nil {
				e.warnOnce(err)
				err = nil
			}
		}
	}
	result := err
	if err != nil {
		result = e.explain("create a Pod as a dry run", err)
	} else if err = e.checkDelivery(ctx, tuning); err != nil {
		// 3. Create the Secret for the handoff as a dry run.
		result = e.explainObject("create", secrets, err)
	}
	if err == nil || answered(err) {
		e.dryRuns.note(tuning.Instance, result)
	}
	return result
}

// checkDelivery returns an error if the cluster refuses the Secret that carries a handoff
// with these settings. It returns nil if these settings need no such Secret.
func (e *Executor) checkDelivery(ctx context.Context, tuning runtime.Tuning) error {
	if tuning.Instance.Kubernetes.Handoff != handoffSecret {
		return nil
	}
	job := &runtime.Job{ID: "check", Pool: "check", Agent: cmp.Or(e.cluster.options.Agent, "check")}
	o := inSecret.object(e.objectMeta(job, objectOf(namePrefix+"check"), time.Now()), []byte("check"))
	_, err := e.client.createObject(ctx, secrets, o, true)
	return err
}

// examplePod returns the Pod of a job with these settings. Its name is always the same, so
// that the messages of the API server can be compared.
func (e *Executor) examplePod(tuning runtime.Tuning) (*corev1.Pod, error) {
	job := &runtime.Job{ID: "check", Pool: "check", Agent: cmp.Or(e.cluster.options.Agent, "check"), Tuning: tuning}
	job.Definition.Image.Reference = "check"
	pod, err := podOf(job, namePrefix+"check", e.podSettings())
	if err == nil {
		pod.Namespace = e.namespace
	}
	return pod, err
}

// dryRun returns the Pod that the cluster would create, with the changes of its admission.
func (e *Executor) dryRun(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	created, err := e.client.create(ctx, pod, true)
	if err != nil {
		return nil, err
	}
	return created, checkLabels(pod, created)
}

// refusesPod reports whether the API server refused a Pod because of its content, and not
// because a quota is used up.
func refusesPod(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !temporary(err)
}

// warnOnce logs that the cluster refuses a template, unless the last warning had the same
// message.
func (e *Executor) warnOnce(err error) {
	text := tail(err.Error())
	e.dryRuns.mu.Lock()
	defer e.dryRuns.mu.Unlock()
	if e.dryRuns.lastWarning != text {
		e.dryRuns.lastWarning = text
		e.log.Warn("pod_template rejected by the cluster, jobs will fail",
			"namespace", e.namespace, "error", text)
	}
}
