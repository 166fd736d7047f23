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

// dryRunFresh is how long a dry run that found no problem counts.
const dryRunFresh = time.Minute

// checkedPlace is the result of the last dry run that found no problem.
type checkedPlace struct {
	mu     sync.Mutex
	place  runtime.Place
	at     time.Time
	warned string // what the log has of templates that the cluster refuses
}

// Check returns why no job could be started now: the API server does not answer,
// rights are missing, or the cluster refuses the Pods of these settings or what carries
// their handoffs. The first is known from the watch without a request. The others take
// creates as dry runs, which the API server answers like real ones; they are repeated
// when settings change, while one finds a problem, and once a minute.
//
// A Pod that is refused for what its template changes is no such problem: the job
// fails, and its log has the message of the API server, for those who try a
// template. The log of the agent has a warning.
func (e *Executor) Check(ctx context.Context, tuning runtime.Tuning) error {
	if err := e.pods.health(); err != nil {
		return e.explain("watch Pods", err)
	}
	if err := e.pods.ready(ctx); err != nil {
		return e.explain("watch Pods", err)
	}
	e.checked.mu.Lock()
	known := time.Since(e.checked.at) < dryRunFresh && reflect.DeepEqual(e.checked.place, tuning.Place)
	e.checked.mu.Unlock()
	if known {
		return nil
	}

	pod, err := e.checkPod(tuning)
	if err != nil {
		return err
	}
	err = e.dryRun(ctx, pod)
	if refusesPod(err) && len(tuning.Place.Kubernetes.Template) > 0 {
		tuning := tuning
		tuning.Place.Kubernetes.Template = nil
		if plain, wrong := e.checkPod(tuning); wrong == nil && e.dryRun(ctx, plain) == nil {
			e.warnOnce(err)
			err = nil
		}
	}
	if err != nil {
		return e.explain("create a Pod as a dry run", err)
	}
	if err := e.checkDelivery(ctx, tuning); err != nil {
		return err
	}
	e.checked.mu.Lock()
	defer e.checked.mu.Unlock()
	e.checked.place, e.checked.at = tuning.Place, time.Now()
	return nil
}

// checkDelivery returns why the object could not be created that carries the handoffs of
// these settings, if one does.
func (e *Executor) checkDelivery(ctx context.Context, tuning runtime.Tuning) error {
	d := deliveryOf(tuning.Place.Kubernetes.Handoff, 0)
	if d.resource == "" {
		return nil
	}
	job := &runtime.Job{ID: "check", Pool: "check", Agent: cmp.Or(e.cluster.options.Agent, "check")}
	o := d.object(e.objectMeta(job, objectOf(namePrefix+"check"), time.Now()), []byte("check"))
	if err := e.client.createObject(ctx, d.resource, o, true); err != nil {
		return e.explainObject("create", d.resource, err)
	}
	return nil
}

// checkPod returns the Pod of a job with these settings. Its name is always the
// same, so that answers about it can be compared.
func (e *Executor) checkPod(tuning runtime.Tuning) (*corev1.Pod, error) {
	job := &runtime.Job{ID: "check", Pool: "check", Agent: cmp.Or(e.cluster.options.Agent, "check"), Tuning: tuning}
	job.Definition.Image.Reference = "check"
	pod, err := podOf(job, namePrefix+"check", e.podSettings())
	if err == nil {
		pod.Namespace = e.namespace
	}
	return pod, err
}

// dryRun sends a create that creates nothing.
func (e *Executor) dryRun(ctx context.Context, pod *corev1.Pod) error {
	_, err := e.client.create(ctx, e.namespace, pod, true)
	return err
}

// refusesPod reports whether an answer of the API server refuses a Pod for what it
// contains, and not for a quota that is used up.
func refusesPod(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && !temporary(err)
}

// warnOnce logs that the cluster refuses a template, once for each message.
func (e *Executor) warnOnce(err error) {
	text := shortened(err.Error())
	e.checked.mu.Lock()
	defer e.checked.mu.Unlock()
	if e.checked.warned != text {
		e.checked.warned = text
		e.log.Warn("the cluster refuses Pods with the pod_template: jobs will fail", "namespace", e.namespace, "error", text)
	}
}
