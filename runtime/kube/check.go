package kube

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// dryRunFresh is how long a dry run that found no problem counts.
const dryRunFresh = time.Minute

// checkedPlace is the result of the last dry run that found no problem.
type checkedPlace struct {
	mu    sync.Mutex
	place runtime.Place
	at    time.Time
}

// Check returns why no job could be started now: the API server does not answer,
// rights are missing, the template does not fit, or the cluster refuses the Pods
// of these settings. The first is known from the watch without a request. The last
// takes a create as a dry run, which the API server answers like a real one; it is
// repeated when settings change, while it finds a problem, and once a minute.
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

	job := &runtime.Job{ID: "check", Pool: "check", Agent: cmp.Or(e.cluster.options.Agent, "check"), Tuning: tuning}
	job.Definition.Image.Reference = "check"
	pod, err := podOf(job, newName(), e.podSettings())
	if err != nil {
		return err
	}
	pod.Namespace = e.namespace
	if _, err := e.client.create(ctx, e.namespace, pod, true); err != nil {
		return e.explain("create a Pod as a dry run", err)
	}
	e.checked.mu.Lock()
	defer e.checked.mu.Unlock()
	e.checked.place, e.checked.at = tuning.Place, time.Now()
	return nil
}
