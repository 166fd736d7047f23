package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

func TestRequeue(t *testing.T) {
	// expire runs the expiry of the service as if no call had been made for a duration.
	expire := func(w *world, after time.Duration) {
		t.Helper()
		if err := w.server.expire(t.Context(), time.Now().Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a heartbeat comes in time", func(t *testing.T) {
		if requeueAfter <= runtime.HeartbeatInterval {
			t.Errorf("a claim is lost after %s, and agents send heartbeats every %s", requeueAfter,
				runtime.HeartbeatInterval)
		}
	})
	t.Run("a claim whose definition was not fetched is claimed again, and its token is refused", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		lost := w.mustClaim(p)
		expire(w, requeueAfter-time.Second)
		if w.claim(p) != nil {
			t.Error("the job was queued again too early")
		}
		expire(w, requeueAfter+time.Second)
		w.shows(at, id, notStarted, notStarted, notStarted)
		again := w.mustClaim(p)
		if again.job.JobID != lost.job.JobID || again.job.JobToken == lost.job.JobToken {
			t.Errorf("claimed %+v after %+v, want the same job with another token", again.job, lost.job)
		}
		for name, code := range map[string]int{
			"a heartbeat": lost.heartbeat(), "the definition": lost.ask("GET", "", nil),
			"a report": lost.status(0, running),
		} {
			if code != 401 {
				t.Errorf("%s of the lost claim is answered with %d, want 401", name, code)
			}
		}
		again.definition()
		again.runs(0, 1)
		w.shows(at, id, succeeded, succeeded, succeeded)
	})
	t.Run("a claim whose definition was fetched stays, also after a restart of the service", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		c.definition()
		w.restart()
		expire(w, 9*time.Minute)
		w.shows(at, id, accepted, notStarted, notStarted)
		c.runs(0, 1)
		w.shows(at, id, succeeded, succeeded, succeeded)
	})
	t.Run("an agent that sends heartbeats keeps its claim", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		claimed := store.ToNanos(time.Now().Add(-requeueAfter)) // without the heartbeat, the claim would be lost now
		w.write(`UPDATE deployments SET claimed = ? WHERE id = ?`, claimed, id)
		c.heartbeat()
		expire(w, requeueAfter-time.Second)
		w.shows(at, id, accepted, notStarted, notStarted)
		expire(w, requeueAfter+time.Second)
		w.shows(at, id, notStarted, notStarted, notStarted)
	})
	t.Run("a job whose claim is lost three times is queued again each time", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		for range 3 {
			w.mustClaim(p)
			expire(w, requeueAfter+time.Second)
			w.shows(at, id, notStarted, notStarted, notStarted)
		}
	})
	t.Run("a deployment without a pool is for another pool after a lost claim", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		w.deploy(at, steps(1))
		w.mustClaim(p)
		expire(w, requeueAfter+time.Second)
		var pool string
		if w.read([]any{&pool}, `SELECT pool FROM deployments`); pool != "" {
			t.Errorf("the deployment is for the pool %q, want any", pool)
		}
	})
	t.Run("a deployment whose pool was deleted after its claim ends", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1, object{"agentPoolID": p.ID}))
		w.mustClaim(p)
		w.want(204, w.user, "DELETE", pools+"/"+p.ID+"?force=true", nil, nil)
		expire(w, requeueAfter+time.Second)
		w.shows(at, id, "skipped", notStarted, notStarted)
	})
	t.Run("no job fails after a pause of the service", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newHeartbeats(time.Now())
			b.record(1, time.Now())
			time.Sleep(time.Hour)
			b.restart(time.Now())
			if silence := time.Since(b.lastOf(1)); silence != 0 {
				t.Errorf("the last heartbeat was %s ago, want now", silence)
			}
		})
	})
}
