package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
	"github.com/cmwa-project/cmwa/runtime/kube/records"
)

// send sends the handoff, or a later version with more lines of step 0. If a later version
// does not arrive, the job continues with the earlier one.
func (s *starting) send(ctx context.Context, key string) error {
	s.linesPending, s.unsentLines = false, false
	text, err := s.setup.Handoff(ctx, "/")
	switch {
	case err == nil:
	case s.sent: // the job may run; if it was cancelled, ctx ends soon, and awaitStart returns
		return nil
	default:
		return err
	}
	switch err := s.sendSealed(ctx, key, text); {
	case err == nil && s.sent:
		s.settled = time.Now().Add(settleTime)
	case err != nil && !s.sent:
		return err
	}
	killpoint.Hit(killpoint.HandoffSent)
	s.sent = true
	return nil
}

// sendSealed seals a handoff to the key and writes it into an annotation of the Pod.
func (s *starting) sendSealed(ctx context.Context, key string, text []byte) error {
	e := s.executor
	limit := handoff.MaxAnnotation
	if s.delivery != inAnnotation {
		limit = handoff.MaxObject
	}
	sealed, err := s.sender.Seal(key, recipientOf(s.created), text, limit)
	if err != nil {
		return sendError(err)
	}
	s.sendTried = true
	s.versions++
	until := time.Now().Add(min(max(time.Until(s.deadline), minSendTime), maxSendTime))
	if s.sent {
		until = time.Now().Add(resendLimit)
	}
	if s.delivery != inAnnotation {
		// Changing the annotation makes the kubelet read the ConfigMap at once.
		if err := s.createCarrier(ctx, s.created.Name, []byte(sealed), until); err != nil {
			return err
		}
		killpoint.Hit(killpoint.HandoffStored)
		sealed = s.delivery.annotationValue()
		if s.versions > 1 {
			sealed = fmt.Sprintf("%s, version %d", sealed, s.versions)
		}
	}
	var adopted error
	err = retry{
		deadline: until, refusalLimit: e.refusalLimit(),
		conflicts: true, // the kubelet updates the status often during a start
		explain: func(err error) error {
			if isNotFound(err) && !s.delivered {
				return &lostError{cause{message: deletedText}}
			}
			return e.explain("send the job to its Pod", err)
		},
		log: func(err error) error {
			if !s.sent { // do not flush: after the handoff, the log belongs to the runner
				s.setup.Log("The job cannot be sent to its Pod yet, retrying: %s", tail(err.Error()))
			}
			return nil
		},
	}.do(ctx, func() error {
		err := s.tryWrite(ctx, sealed)
		if errors.Is(err, records.ErrAdopted) {
			adopted = fmt.Errorf("send the job to its Pod: %w", err)
			return nil
		}
		s.delivered = s.delivered || err == nil || temporary(err)
		return err
	})
	if adopted != nil && e.records.Load().Has(s.job.ID) {
		// The other agent adopts the record, and then starts or reports the job.
		e.records.Load().Leave(s.job.ID)
		return fmt.Errorf("%w: %w", adopted, runtime.ErrGone)
	}
	return cmp.Or(adopted, err) // without a record, the other agent removes the Pod
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

// update writes a sealed handoff into the Pod. It returns [records.ErrAdopted] if another
// agent has adopted the Pod, unless the Pod already has a handoff from an earlier request whose
// response was lost.
func (e *Executor) update(ctx context.Context, pod *corev1.Pod, sealed string) error {
	switch o := ownerOf(pod); {
	case !e.self.known() || o.UID == "" || o == e.self.owner:
	case pod.Annotations[annotationHandoff] != "":
		return nil
	default:
		return records.ErrAdopted
	}
	pod = pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationHandoff, sealed)
	_, err := e.client.update(ctx, pod)
	return err
}
