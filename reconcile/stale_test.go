package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

func TestSetForgetsCancelledPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, runtime.PoolSpec) (reconcile.Pool, error) {
			time.Sleep(10 * time.Second) // virtual time: a slow engine
			return nil, errors.New("the engine does not respond")
		}
		process := func(context.Context, reconcile.ProcessSpec, reconcile.ProcessSpec) (reconcile.Prepared, error) {
			return reconcile.Prepared{Commit: func() {}, Discard: func() {}}, nil
		}
		loop := reconcile.New(slow, process, reconcile.ProcessSpec{}, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx, context.Background()) }()
		spec := runtime.PoolSpec{Name: "a"}
		loop.Want(reconcile.Desired{Generation: 1, Pools: map[string]runtime.PoolSpec{spec.Key(): spec}})
		time.Sleep(time.Second)
		loop.Want(reconcile.Desired{Generation: 2, Pools: map[string]runtime.PoolSpec{}})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if status := loop.Status(); status.Applied != 2 || len(status.Problems) > 0 {
			t.Errorf("the status is %+v, want generation 2 in force without problems", status)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
