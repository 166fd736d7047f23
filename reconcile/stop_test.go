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

// startJob starts a pool with one job, and a shutdown timeout.
func (h *loopTest) startJob(timeout time.Duration) *fakePool {
	h.deliver(limited(1, timeout))
	p := h.pool("a")
	p.has(1)
	return p
}

// wantLogged checks how often the log contains a text.
func (h *loopTest) wantLogged(want int, text string) {
	h.Helper()
	if times := strings.Count(h.log.String(), text); times != want {
		h.Errorf("the log contains %q %d times, want %d:\n%s", text, times, want, h.log.String())
	}
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
		withLoop(t, name, func(h *loopTest) {
			h.startJob(time.Hour)
			started := time.Now()
			h.stop()
			synctest.Wait()
			for i, e := range c.edits {
				time.AfterFunc(e.after, func() { h.loop.Want(limited(uint64(i)+2, e.timeout)) })
			}
			if s := h.loop.Status(); !s.Stopping || !s.StopAt.Equal(started.Add(time.Hour)) || s.Ready(time.Now()) {
				h.Errorf("Stopping is %v and StopAt is %s, want true and an hour after the signal", s.Stopping,
					s.StopAt)
			}
			h.ended <- <-h.ended
			if took := time.Since(started); took != c.took {
				h.Errorf("the job was stopped after %s, want %s", took, c.took)
			}
			h.wantLogged(len(c.edits), "shutdown_timeout changed")
			h.wantLogged(0, "only shutdown_timeout is applied")
		})
	}
}

func TestLoopStop(t *testing.T) {
	withLoop(t, "other edits are not applied, and logged once", func(h *loopTest) {
		p := h.startJob(time.Hour)
		h.stop()
		synctest.Wait()
		for generation := range uint64(3) {
			next := limited(generation+2, 2*time.Hour)
			next.Process.LogLevel = "debug"
			b := pool("b", "one", 1)
			next.Pools[b.Key()] = b
			h.deliver(next)
		}
		h.wantPhase(p, runtime.PoolDraining)
		h.wantTries("b", 0)
		if len(h.sets) != 1 {
			h.Errorf("the committed settings of the process are %v, want only the first", h.sets)
		}
		pass(90 * time.Minute)
		if len(p.State().Jobs) != 1 {
			h.Error("the longer shutdown_timeout of the same edit was not applied")
		}
		h.wantLogged(1, "only shutdown_timeout is applied")
	})

	withLoop(t, "edit while the jobs are being stopped is too late", func(h *loopTest) {
		p := h.startJob(time.Minute)
		p.set(func() { p.stubborn = true })
		h.stop()
		pass(2 * time.Minute)
		h.loop.Want(limited(2, time.Hour))
		pass(time.Minute)
		if s := h.loop.Status(); !s.Stopping || !s.StopAt.IsZero() ||
			!strings.Contains(h.log.String(), "changed too late") {
			h.Errorf("the status is %+v, the log\n%s", s, h.log.String())
		}
		p.set(func() { p.stubborn = false })
	})

	withLoop(t, "retry and further turns do not revive a pool", func(h *loopTest) {
		p := h.startJob(time.Hour)
		h.stop()
		for range 10 {
			h.loop.Retry()
			pass(time.Minute)
		}
		h.wantPhase(p, runtime.PoolDraining)
		h.wantTries("a", 1)
		p.has(0)
		h.ended <- <-h.ended
	})
}
