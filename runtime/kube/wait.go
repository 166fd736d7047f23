package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// reasonLimit is how long the reason of an end is waited for. The phase and the
// reason of a Pod, such as Evicted, follow the end of its container by up to 2.5
// seconds.
const reasonLimit = 4 * time.Second

// Wait blocks until the job's container has ended. It reads what the watch shows
// and sends nothing, so an API server that is down delays it only.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	name, uid, ok := parseID(id)
	if !ok {
		return runtime.Exit{}, fmt.Errorf("wait for %q: %w", id, runtime.ErrNoEnvironment)
	}
	if err := e.pods.ready(ctx); err != nil {
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, err)
	}
	w := &wait{executor: e, name: name, uid: uid, seen: e.pods.subscribe(name, false)}
	defer w.seen.close()
	for {
		left, changed, end := w.look(ctx)
		if end != nil {
			return end.exit, end.err
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// wait is one call of Wait. It lasts as long as its job, so that little of it is on
// the stack.
type wait struct {
	executor  *Executor
	name, uid string
	seen      *subscription

	// How long states are accepted that can end in two ways.
	lost  time.Time // since when the node does not report; zero while it does
	ended time.Time // since when the container has ended without a reason
}

// ending is what Wait returns.
type ending struct {
	exit runtime.Exit
	err  error
}

// look returns how the Pod ended, or when to look again: after left, or when changed
// is closed.
func (w *wait) look(ctx context.Context) (left time.Duration, changed <-chan struct{}, end *ending) {
	now, gone, changed := w.seen.now()
	switch {
	case ctx.Err() != nil:
		return 0, nil, &ending{err: fmt.Errorf("wait for Pod %s: %w", w.name, context.Cause(ctx))}
	case now == nil || gone && now.uid == w.uid && !now.over():
		exit, err := w.executor.vanished(ctx, w.name, w.uid, now)
		return 0, nil, &ending{exit, err}
	case now.uid != w.uid:
		return 0, nil, &ending{err: fmt.Errorf("wait for Pod %s: %w", w.name, runtime.ErrNoEnvironment)}
	case gone:
		return 0, nil, &ending{exit: exitOf(now)}
	}
	left, exit := w.next(now)
	if exit != nil {
		return 0, nil, &ending{exit: *exit}
	}
	return left, changed, nil
}

// untilChanged is the time until the next look when nothing but a change of the Pod
// is waited for.
const untilChanged = 24 * time.Hour

// next returns how the Pod ended, or the time after which to look again if it has
// not changed.
func (w *wait) next(now *state) (time.Duration, *runtime.Exit) {
	if now.over() {
		exit := exitOf(now)
		if now.phase != corev1.PodRunning && now.phase != corev1.PodPending || runtime.ChosenCode(exit.Code) {
			return 0, &exit
		}
		if w.ended.IsZero() {
			w.ended = time.Now()
		}
		left := time.Until(w.ended.Add(reasonLimit))
		if left <= 0 {
			return 0, &exit
		}
		return left, nil
	}
	if !now.nodeLost {
		w.lost = time.Time{}
		return untilChanged, nil
	}
	if w.lost.IsZero() {
		w.lost = time.Now()
	}
	left := time.Until(w.lost.Add(w.executor.lostLimit))
	if left <= 0 {
		reason := fmt.Sprintf("node %s has not reported for %s", now.node, w.executor.lostLimit)
		return 0, &runtime.Exit{Code: never, Reason: reason}
	}
	return left, nil
}

// vanished returns how a Pod ended that the watch does not show, or shows as
// deleted while its job ran. It asks the API server, because a Pod whose labels
// somebody has changed is not deleted.
func (e *Executor) vanished(ctx context.Context, name, uid string, last *state) (runtime.Exit, error) {
	there, err := e.client.get(ctx, e.namespace, name)
	switch {
	case err == nil && string(there.UID) == uid:
		if now := stateOf(there); now.over() {
			return exitOf(now), nil
		}
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: it exists, and the watch does not show it: "+
			"its labels must not be changed", name)
	case err != nil && !absent(err):
		return runtime.Exit{}, e.explain("look for Pod "+name, err)
	case last == nil:
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, runtime.ErrNoEnvironment)
	}
	exit := exitOf(last)
	if last.disruption.none() && last.reason == "" {
		exit.Reason = deletedText
	}
	return exit, nil
}
