package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cmwa-project/cmwa/runtime"
)

// Wait blocks until the job's container has ended. It reads the store of the watch, and
// gets the Pod only if the store does not contain it. Therefore an outage of the API server
// usually delays Wait and causes no error.
func (e *Executor) Wait(ctx context.Context, id string) (runtime.Exit, error) {
	name, uid, ok := parseID(id)
	if !ok {
		return runtime.Exit{}, fmt.Errorf("wait for %q: %w", id, runtime.ErrNoInstance)
	}
	if err := e.pods.ready(ctx); err != nil {
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, err)
	}
	w := &waiter{executor: e, name: name, uid: uid, sub: e.pods.subscribe(name, false)}
	defer w.sub.close()
	for {
		delay, changed, end := w.check(ctx)
		if end != nil {
			return end.exit, end.err
		}
		timer := time.NewTimer(delay)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// waiter is one call of Wait. A call lasts as long as its job, so its variables are fields
// and not on the stack of the goroutine.
type waiter struct {
	executor  *Executor
	name, uid string
	sub       *subscription

	// When Wait first saw a state that may be temporary.
	lostSince  time.Time // the node does not report; zero while it reports
	endedSince time.Time // the container has ended without a reason; zero before
}

type waitResult struct {
	exit runtime.Exit
	err  error
}

// check returns how the Pod ended, or when to check again: after delay, or when changed is
// closed.
func (w *waiter) check(ctx context.Context) (delay time.Duration, changed <-chan struct{}, end *waitResult) {
	now, gone, changed := w.sub.current()
	switch {
	case ctx.Err() != nil:
		return 0, nil, &waitResult{err: fmt.Errorf("wait for Pod %s: %w", w.name, context.Cause(ctx))}
	case now == nil || gone && now.uid == w.uid && !now.finished():
		exit, err := w.executor.exitOfDeleted(ctx, w.name, w.uid, now)
		return 0, nil, &waitResult{exit, err}
	case now.uid != w.uid:
		return 0, nil, &waitResult{err: fmt.Errorf("wait for Pod %s: %w", w.name, runtime.ErrNoInstance)}
	case gone:
		return 0, nil, &waitResult{exit: exitOf(now)}
	}
	delay, exit := w.evaluate(now)
	if exit != nil {
		return 0, nil, &waitResult{exit: *exit}
	}
	return delay, changed, nil
}

// evaluate returns how the Pod ended, or the delay until the next check.
func (w *waiter) evaluate(now *state) (time.Duration, *runtime.Exit) {
	// The container has ended: wait for the reason.
	if now.finished() {
		exit := exitOf(now)
		if now.phase != corev1.PodRunning && now.phase != corev1.PodPending || runtime.IsRunnerCode(exit.Code) {
			return 0, &exit
		}
		if w.endedSince.IsZero() {
			w.endedSince = time.Now()
		}
		delay := time.Until(w.endedSince.Add(endReasonLimit))
		if delay <= 0 {
			return 0, &exit
		}
		return delay, nil
	}

	// The node does not report: wait until it does, for up to lostLimit.
	if !now.nodeLost {
		w.lostSince = time.Time{}
		return idleWait, nil
	}
	if w.lostSince.IsZero() {
		w.lostSince = time.Now()
	}
	delay := time.Until(w.lostSince.Add(w.executor.lostLimit))
	if delay <= 0 {
		reason := fmt.Sprintf("node %s has not reported for %s", now.node, w.executor.lostLimit)
		return 0, &runtime.Exit{Code: runtime.CodeUnknown, Reason: reason}
	}
	return delay, nil
}

// exitOfDeleted returns how a Pod ended if the watch does not show the Pod, or shows it as
// deleted before its job ended. It gets the Pod first: the watch also no longer shows a Pod
// if a user has changed its labels.
func (e *Executor) exitOfDeleted(ctx context.Context, name, uid string, last *state) (runtime.Exit, error) {
	pod, err := e.client.get(ctx, e.namespace, name)
	switch {
	case err == nil && string(pod.UID) == uid:
		if now := stateOf(pod); now.finished() {
			return exitOf(now), nil
		}
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: the Pod exists, but the watch does not show it: "+
			"its labels must not be changed", name)
	case err != nil && !isNotFound(err):
		return runtime.Exit{}, e.explain("get Pod "+name, err)
	case last == nil:
		return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, runtime.ErrNoInstance)
	}
	exit := exitOf(last)
	if last.disruption.empty() && last.reason == "" {
		exit.Reason = deletedText
	}
	return exit, nil
}
