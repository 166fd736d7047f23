package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

// Times of a removal.
const (
	overdueLimit = 60 * time.Second // beyond the grace, after which the object is removed by force
	lookEvery    = time.Second      // at a Pod that the watch does not show
	lookSeldom   = 10 * time.Second // at a Pod that the watch shows, if it is not gone by then
)

// Remove deletes the Pod and returns when it is gone. The kubelet sends a TERM
// first; a grace is rounded up to whole seconds. A grace of zero would remove the
// object at once and leave the container to end by itself, so a Pod that may run
// has one second at least. The Pod of a failed job is kept if the pool says so.
// A Pod that the watch shows as deleted is deleted all the same, because a list can
// be an old one.
func (e *Executor) Remove(ctx context.Context, id string, grace time.Duration) error {
	name, uid, ok := parseID(id)
	if !ok {
		return nil
	}
	seen := e.pods.subscribe(name, false)
	defer seen.close()
	now, _, _ := seen.now()
	if now != nil && now.uid != uid {
		return nil
	}
	if now != nil && now.carrier != "" {
		if err := e.removeObject(ctx, now.carrier, objectOf(name)); err != nil {
			e.log.Warn("cannot remove a job's handoff", "pod", name, "error", err)
		}
	}
	if grace == 0 && now != nil && now.keep == keepFailed && now.main.ended && now.main.code != runtime.CodeSucceeded {
		return e.keep(ctx, name, uid)
	}
	seconds := int64((grace + time.Second - 1) / time.Second)
	if quiet := now != nil && (now.nodeLost || now.main.ended && now.alone); !quiet {
		seconds = max(seconds, 1)
	}
	return e.remove(ctx, name, uid, seconds)
}

// remove deletes a Pod and waits until it is gone. A delete that may succeed later
// is tried again until ctx ends.
func (e *Executor) remove(ctx context.Context, name, uid string, grace int64) error {
	seen := e.pods.subscribe(name, false)
	defer seen.close()
	for wait := createRetry; ; wait = min(2*wait, createRetryMax) {
		gone, err := e.delete(ctx, name, uid, grace)
		switch {
		case gone:
			return nil
		case err == nil:
			return e.awaitDeletion(ctx, seen, uid, grace)
		case !temporary(err) || !pause(ctx, wait):
			return e.explain("delete the Pod", err)
		}
	}
}

// awaitDeletion blocks until a Pod is gone whose deletion was requested.
func (e *Executor) awaitDeletion(ctx context.Context, seen *subscription, uid string, grace int64) error {
	name := seen.name
	overdue := time.NewTimer(time.Duration(grace)*time.Second + overdueLimit)
	defer overdue.Stop()
	for looked := time.Now(); ; {
		now, gone, changed := seen.now()
		if now != nil && (gone || now.uid != uid) {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(lookEvery):
			if now != nil && e.pods.health() == nil && time.Since(looked) < lookSeldom {
				continue
			}
			looked = time.Now()
			there, err := e.client.get(ctx, e.namespace, name)
			if absent(err) || err == nil && string(there.UID) != uid {
				return nil
			}
		case <-overdue.C: // the node does not answer
			e.log.Warn("pod is removed by force: its node does not end it", "pod", name)
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

// delete makes one request to delete a Pod, and reports whether it is gone already.
func (e *Executor) delete(ctx context.Context, name, uid string, grace int64) (gone bool, err error) {
	err = e.client.delete(ctx, e.namespace, name, uid, grace)
	if absent(err) || apierrors.IsConflict(err) && !fromProxy(err) { // there is none, or another one of this name
		return true, nil
	}
	return false, err
}

// keep leaves the Pod of a failed job in the cluster, for people to look at. It
// takes the labels of the agent away, so that no agent takes it for a job of its
// own; a sweep removes it.
func (e *Executor) keep(ctx context.Context, name, uid string) error {
	for {
		pod, err := e.client.get(ctx, e.namespace, name)
		switch {
		case absent(err) || err == nil && string(pod.UID) != uid:
			return nil
		case err != nil:
			return e.explain("keep the Pod of a failed job", err)
		}
		if slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool {
			return r.Name == pullSecretOf(name)
		}) {
			if err := e.removeObject(ctx, secrets, pullSecretOf(name)); err != nil {
				e.log.Warn("cannot remove the registry credentials of a job whose Pod is kept", "pod", name, "error", err)
			}
		}
		until := time.Now().Add(keepTime).UTC()
		release(pod, until)
		_, err = e.client.update(ctx, pod)
		switch {
		case apierrors.IsConflict(err) && !fromProxy(err):
			continue
		case err != nil && !absent(err):
			return e.explain("keep the Pod of a failed job", err)
		}
		e.log.Info("pod of a failed job is kept", "pod", name, "until", until.Format(time.RFC3339))
		return nil
	}
}

// release makes a Pod one that no agent owns.
func release(pod *corev1.Pod, until time.Time) {
	delete(pod.Labels, labelAgent)
	delete(pod.Labels, labelOwner)
	delete(pod.Annotations, annotationHandoff)
	pod.Labels[labelKeep] = keepUntil
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationKept] = until.Format(time.RFC3339)
}
