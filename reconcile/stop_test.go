package reconcile_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// limited returns a generation with one pool and a shutdown timeout.
func limited(generation uint64, timeout time.Duration) reconcile.Desired {
	d := desiredState(generation, pool("a", "one", 1))
	d.Process.ShutdownTimeout = timeout
	return d
}

// TestLoopShutdownTimeout edits shutdown_timeout while a job keeps the agent from ending.
func TestLoopShutdownTimeout(t *testing.T) {
	type edit struct {
		after, timeout time.Duration
	}
	for name, c := range map[string]struct {
		edits []edit
		took  time.Duration
	}{
		"without an edit":                       {nil, time.Hour},
		"longer":                                {[]edit{{30 * time.Minute, 3 * time.Hour}}, 3 * time.Hour},
		"shorter":                               {[]edit{{10 * time.Minute, 20 * time.Minute}}, 20 * time.Minute},
		"shorter than the time that has passed": {[]edit{{10 * time.Minute, time.Minute}}, 10 * time.Minute},
		"zero":                                  {[]edit{{time.Minute, 0}}, time.Minute},
		"longer, and shorter again": {
			[]edit{{10 * time.Minute, 5 * time.Hour}, {2 * time.Hour, 150 * time.Minute}}, 150 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			withLoop(t, func(t *testing.T, h *loopTest) {
				h.loop.Want(limited(1, time.Hour))
				synctest.Wait()
				p := h.pool("a")
				p.has(1)
				began := time.Now()
				h.stop()
				synctest.Wait()
				for i, e := range c.edits {
					time.AfterFunc(e.after, func() { h.loop.Want(limited(uint64(i)+2, e.timeout)) })
				}
				if s := h.loop.Status(); !s.Stopping || !s.StopAt.Equal(began.Add(time.Hour)) || s.Ready(time.Now()) {
					t.Errorf("Stopping is %v and StopAt is %s, want true and an hour after the signal", s.Stopping,
						s.StopAt)
				}
				h.ended <- <-h.ended
				if took := time.Since(began); took != c.took {
					t.Errorf("the job was stopped after %s, want %s", took, c.took)
				}
				if logged := strings.Count(h.log.String(), "shutdown_timeout changed"); logged != len(c.edits) {
					t.Errorf("%d changes are logged, want %d:\n%s", logged, len(c.edits), h.log.String())
				}
				if strings.Contains(h.log.String(), "only shutdown_timeout is applied") {
					t.Errorf("the log reports changes that are not applied:\n%s", h.log.String())
				}
			})
		})
	}
}

func TestLoopStop(t *testing.T) {
	t.Run("other edits are not applied, and logged once", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.loop.Want(limited(1, time.Hour))
			synctest.Wait()
			p := h.pool("a")
			p.has(1)
			h.stop()
			synctest.Wait()
			for generation := range uint64(3) {
				next := limited(generation+2, 2*time.Hour)
				next.Process.LogLevel = "debug"
				b := pool("b", "one", 1)
				next.Pools[b.Key()] = b
				h.loop.Want(next)
				synctest.Wait()
			}
			if phase := p.State().Phase; phase != runtime.PoolDraining || h.pool("b") != nil || len(h.sets) != 1 {
				t.Errorf("pool a is %s, pool b was started: %v, the committed settings of the process are %v",
					phase, h.pool("b") != nil, h.sets)
			}
			pass(90 * time.Minute)
			if len(p.State().Jobs) != 1 {
				t.Error("the longer shutdown_timeout of the same edit was not applied")
			}
			if logged := strings.Count(h.log.String(), "only shutdown_timeout is applied"); logged != 1 {
				t.Errorf("%d lines about changes that are not applied, want 1:\n%s", logged, h.log.String())
			}
		})
	})

	t.Run("edit while the jobs are being stopped is too late", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.loop.Want(limited(1, time.Minute))
			synctest.Wait()
			p := h.pool("a")
			p.set(func() { p.jobs, p.stubborn = 1, true })
			h.stop()
			pass(2 * time.Minute)
			h.loop.Want(limited(2, time.Hour))
			pass(time.Minute)
			if s := h.loop.Status(); !s.Stopping || !s.StopAt.IsZero() ||
				!strings.Contains(h.log.String(), "changed too late") {
				t.Errorf("the status is %+v, the log\n%s", s, h.log.String())
			}
			p.set(func() { p.stubborn = false })
		})
	})

	t.Run("retry and further turns do not revive a pool", func(t *testing.T) {
		withLoop(t, func(t *testing.T, h *loopTest) {
			h.loop.Want(limited(1, time.Hour))
			synctest.Wait()
			p := h.pool("a")
			p.has(1)
			h.stop()
			for range 10 {
				h.loop.Retry()
				pass(time.Minute)
			}
			if phase := p.State().Phase; phase != runtime.PoolDraining || len(h.built["a"]) != 1 {
				t.Errorf("the pool is %s, and was built %d times", phase, len(h.built["a"]))
			}
			p.has(0)
			h.ended <- <-h.ended
		})
	})
}
