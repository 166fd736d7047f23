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
	seen := e.pods.subscribe(name, false)
	defer seen.close()
	limits := &waitLimits{executor: e}
	for {
		now, gone, changed := seen.now()
		switch {
		case now == nil || gone && now.uid == uid && !now.over():
			return e.vanished(ctx, name, uid, now)
		case now.uid != uid:
			return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, runtime.ErrNoEnvironment)
		case gone:
			return exitOf(now), nil
		}
		left, exit := limits.next(now)
		if exit != nil {
			return *exit, nil
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return runtime.Exit{}, fmt.Errorf("wait for Pod %s: %w", name, context.Cause(ctx))
		}
		timer.Stop()
	}
}

// waitLimits is how long one Wait accepts states that can end in two ways.
type waitLimits struct {
	executor *Executor
	lost     time.Time // since when the node does not report; zero while it does
	ended    time.Time // since when the container has ended without a reason
}

// untilChanged is the time until the next look when nothing but a change of the Pod
// is waited for.
const untilChanged = 24 * time.Hour

// next returns how the Pod ended, or the time after which to look again if it has
// not changed.
func (p *waitLimits) next(now *state) (time.Duration, *runtime.Exit) {
	if now.over() {
		exit := exitOf(now)
		if now.phase != corev1.PodRunning && now.phase != corev1.PodPending || reported(exit.Code) {
			return 0, &exit
		}
		if p.ended.IsZero() {
			p.ended = time.Now()
		}
		left := time.Until(p.ended.Add(reasonLimit))
		if left <= 0 {
			return 0, &exit
		}
		return left, nil
	}
	if !now.nodeLost {
		p.lost = time.Time{}
		return untilChanged, nil
	}
	if p.lost.IsZero() {
		p.lost = time.Now()
	}
	left := time.Until(p.lost.Add(p.executor.lostLimit))
	if left <= 0 {
		reason := fmt.Sprintf("node %s has not reported for %s", now.node, p.executor.lostLimit)
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
