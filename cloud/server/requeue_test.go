package server

import (
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

func TestRequeue(t *testing.T) {
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
		w.expireAfter(requeueAfter - time.Second)
		if w.claim(p) != nil {
			t.Error("the job was queued again too early")
		}
		w.expireAfter(requeueAfter + time.Second)
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
		w.expireAfter(9 * time.Minute)
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
		w.write(`UPDATE deployments SET claimed = ?, heartbeat = ? WHERE id = ?`, claimed, claimed, id)
		c.heartbeat()
		w.expireAfter(requeueAfter - time.Second)
		w.shows(at, id, accepted, notStarted, notStarted)
		w.expireAfter(requeueAfter + time.Second)
		w.shows(at, id, notStarted, notStarted, notStarted)
	})
	t.Run("a job whose claim is lost three times is queued again each time", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		for range 3 {
			w.mustClaim(p)
			w.expireAfter(requeueAfter + time.Second)
			w.shows(at, id, notStarted, notStarted, notStarted)
		}
	})
	t.Run("a deployment without a pool is for another pool after a lost claim", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		w.deploy(at, steps(1))
		w.mustClaim(p)
		w.expireAfter(requeueAfter + time.Second)
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
		w.expireAfter(requeueAfter + time.Second)
		w.shows(at, id, "skipped", notStarted, notStarted)
	})
}
