package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// Remove deletes the Pod and blocks until it is gone. The kubelet first sends a TERM. The
// grace period is rounded up to whole seconds. It is at least one second for a Pod that may
// run: a grace period of zero removes the object at once, and the container ends later.
//
// A period of more than [runtime.StopGrace] includes a cancel grace period. Then the
// terminationGracePeriodSeconds of the Pod replaces it: the runner's own cancel grace period
// fits into that time. The agent can send no signal but the TERM, because it has no right
// to execute commands in Pods.
//
// The Pod of a job that has ended is kept if the pool is configured so. Remove deletes the Pod even
// if the watch shows it as deleted, because a list can be outdated.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	name, uid, ok := parseID(id)
	if !ok {
		return nil
	}

	sub := e.pods.subscribe(name, false)
	defer sub.close()
	now, _, _ := sub.current()
	if now != nil && now.uid != uid {
		return nil
	}
	if now != nil && now.carrier != inAnnotation {
		if err := e.removeObject(ctx, string(now.carrier), objectOf(name)); err != nil {
			e.log.Warn("cannot remove handoff", "pod", name, "error", err)
		}
	}

	if grace == 0 && now != nil && now.isKept() {
		return e.keepPod(ctx, name, uid)
	}
	seconds := int64((grace + time.Second - 1) / time.Second)
	if grace > runtime.StopGrace && now != nil {
		seconds = cmp.Or(now.stopTime, seconds)
	}
	if stopped := now != nil && (now.nodeLost || now.main.ended && now.onlyContainer); !stopped {
		seconds = max(seconds, 1)
	}
	return e.remove(ctx, name, uid, seconds)
}

// remove deletes a Pod and blocks until it is gone. It retries temporary errors until ctx
// ends.
func (e *Executor) remove(ctx context.Context, name, uid string, grace int64) (err error) {
	sub := e.pods.subscribe(name, false)
	defer sub.close()
	defer func() {
		if err == nil {
			e.records.Load().PodRemoved(uid)
			e.dryRuns.podRemoved()
		}
	}()
	gone := false
	err = retry{
		explain: func(err error) error { return e.explain("delete the Pod", err) },
	}.do(ctx, func() (err error) {
		gone, err = e.delete(ctx, name, uid, grace)
		return err
	})
	if err != nil || gone {
		return err
	}
	return e.awaitDeletion(ctx, sub, uid, grace)
}

// awaitDeletion blocks until a Pod is gone. The API server has accepted its deletion.
func (e *Executor) awaitDeletion(ctx context.Context, sub *subscription, uid string, grace int64) error {
	name := sub.name
	overdue := time.NewTimer(time.Duration(grace)*time.Second + overdueLimit)
	defer overdue.Stop()
	delay := deletionBackoff.First
	if last, _, _ := sub.current(); last != nil && e.pods.health() == nil {
		delay = shownPollInterval
	}
	poll := time.NewTimer(runtime.Jitter(delay))
	defer poll.Stop()
	for {
		now, gone, changed := sub.current()
		if now != nil && (gone || now.uid != uid) {
			return nil
		}
		select {
		case <-changed:
		case <-poll.C:
			delay = deletionBackoff.Next(delay)
			poll.Reset(runtime.Jitter(delay))
			pod, err := e.client.getOnce(ctx, e.namespace, name)
			if isNotFound(err) || err == nil && string(pod.UID) != uid {
				return nil
			}
		case <-overdue.C: // the node does not answer
			e.log.Warn("pod deletion forced", "pod", name, "reason", "its node has not ended the Pod in time")
			switch gone, err := e.delete(ctx, name, uid, 0); {
			case gone:
				return nil
			case err != nil:
				return e.explain("delete the Pod", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for Pod %s to be deleted: %w", name, context.Cause(ctx))
		}
	}
}

// delete sends one request to delete a Pod, and reports whether the Pod is already gone.
func (e *Executor) delete(ctx context.Context, name, uid string, grace int64) (gone bool, err error) {
	err = e.client.delete(ctx, e.namespace, name, uid, grace)
	if isNotFound(err) || isConflict(err) { // deleted, or replaced by a Pod with the same name
		return true, nil
	}
	return false, err
}

// keepPod leaves the Pod of a job that has ended in the cluster for inspection. It removes the
// agent's labels, so that no agent lists the Pod as a job. A sweep deletes it later.
func (e *Executor) keepPod(ctx context.Context, name, uid string) error {
	for {
		pod, err := e.client.get(ctx, e.namespace, name)
		switch {
		case isNotFound(err) || err == nil && string(pod.UID) != uid:
			return nil
		case err != nil:
			return e.explain("keep the Pod of the job", err)
		}

		if slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool {
			return r.Name == pullSecretOf(name)
		}) {
			if err := e.removeObject(ctx, secrets, pullSecretOf(name)); err != nil {
				e.log.Warn("cannot remove registry credentials of kept pod", "pod", name,
					"error", err)
			}
		}
		until := e.client.now().Add(keepTime).UTC()
		releasePod(pod, until)
		_, err = e.client.update(ctx, pod)
		switch {
		case isConflict(err):
			continue
		case err != nil && !isNotFound(err):
			return e.explain("keep the Pod of the job", err)
		}
		e.log.Info("pod kept after its job", "pod", name, "kept_until", until.Format(time.RFC3339))
		return nil
	}
}

// releasePod removes the labels of the agent and of the owner from a Pod, its handoff, and the
// annotations that keep its node. It sets the time after which a sweep deletes the Pod.
func releasePod(pod *corev1.Pod, until time.Time) {
	delete(pod.Labels, labelAgent)
	delete(pod.Labels, labelOwner)
	delete(pod.Annotations, annotationHandoff)
	for key := range defaultAnnotations {
		delete(pod.Annotations, key)
	}
	pod.Labels[labelKeep] = keepUntil
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationKept, until.Format(time.RFC3339))
}
