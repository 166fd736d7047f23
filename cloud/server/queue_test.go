package server

import (
	"context"
	"fmt"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

func TestClaim(t *testing.T) {
	t.Run("a stack has one claimed or running deployment at a time", func(t *testing.T) {
		w := newWorld(t)
		p, a, b := w.pool("p"), w.stack("a"), w.stack("b")
		a1, a2, b1 := w.deploy(a, steps(1)), w.deploy(a, steps(1)), w.deploy(b, steps(1))
		first, second := w.mustClaim(p), w.mustClaim(p)
		if first.job.TypeSpecificID != a1 || second.job.TypeSpecificID != b1 || w.claim(p) != nil {
			t.Errorf("claimed %s and %s, want %s and %s", first.job.TypeSpecificID, second.job.TypeSpecificID, a1, b1)
		}
		first.runs(0, 1)
		if got := w.mustClaim(p).job.TypeSpecificID; got != a2 {
			t.Errorf("after the end of the first deployment, the pool claimed %s, want %s", got, a2)
		}
	})

	t.Run("a poll without a job waits for no write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.close()
			p := w.pool("p")
			w.claim(p) // records the agent
			if err := w.server.db.Write(t.Context(), func(*store.Tx) error {
				if w.claim(p) != nil {
					t.Error("the pool claimed a job that does not exist")
				}
				return store.ErrNoChange
			}); err != nil {
				t.Fatal(err)
			}
		})
	})

	t.Run("many agents claim each job once", func(t *testing.T) {
		const jobs, agents = 20, 8
		w := newWorld(t)
		p := w.pool("p")
		for i := range jobs {
			w.deploy(w.stack(fmt.Sprintf("s%d", i)), steps(1))
		}
		var mu sync.Mutex
		var idle atomic.Int32
		seen := map[string]int{}
		var all sync.WaitGroup
		for range agents {
			all.Go(func() {
				for {
					c := w.claim(p)
					if c == nil {
						idle.Add(1)
						return
					}
					mu.Lock()
					seen[c.job.JobID]++
					mu.Unlock()
					if c.status(0, running) != 200 || c.status(0, succeeded) != 200 || c.heartbeat() != 200 {
						t.Error("a report is refused")
					}
				}
			})
		}
		all.Wait()
		for job, times := range seen {
			if times != 1 {
				t.Errorf("job %s was claimed %d times, want once", job, times)
			}
		}
		if len(seen) != jobs || idle.Load() != agents {
			t.Errorf("%d jobs were claimed, want %d; %d agents found an empty queue, want %d", len(seen), jobs,
				idle.Load(), agents)
		}
	})

	t.Run("a caller that has disconnected claims no job", func(t *testing.T) {
		w := newWorld(t)
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		gone, hangUp := context.WithCancel(context.Background())
		hangUp()
		r := httptest.NewRequestWithContext(gone, "GET", "/api/deployments/poll", nil)
		r.Header.Set("Authorization", "token "+p.Token)
		w.handler.ServeHTTP(httptest.NewRecorder(), r)
		w.shows(at, id, notStarted, notStarted, notStarted)
	})
}

func TestSkipQueued(t *testing.T) {
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	skip := object{"operationContext": object{"options": object{"skipIntermediateDeployments": true}}}
	old, young := w.deploy(at, steps(1, skip)), w.deploy(at, steps(1, skip))
	w.shows(at, old, skipped, notStarted, notStarted)
	if got := w.mustClaim(p).job.TypeSpecificID; got != young {
		t.Errorf("claimed %s, want %s", got, young)
	}
}

func TestCheckRouting(t *testing.T) {
	w := newWorld(t)
	at := w.stack("s")
	next := func() string { return w.deploy(w.stack(newID()), steps(1)) }
	early := w.deploy(at, steps(1))
	a := w.pool("a")
	if got := w.mustClaim(a).job.TypeSpecificID; got != early {
		t.Errorf("the first pool got %s, want %s, which was queued before the pool existed", got, early)
	}
	only := next()
	if got := w.mustClaim(a).job.TypeSpecificID; got != only {
		t.Errorf("the only pool got %s, want %s", got, only)
	}
	b := w.pool("b")
	w.want(400, w.user, "POST", w.stack("x"), steps(1), nil)
	w.want(400, w.user, "POST", w.stack("y"), steps(1, object{"agentPoolID": "none"}), nil)
	w.want(200, w.user, "PATCH", "/api/orgs/organization", object{"setDefaultAgentPoolID": b.ID}, nil)
	standard := next()
	if w.claim(a) != nil {
		t.Error("a pool claimed a deployment that is for the default pool")
	}
	if got := w.mustClaim(b).job.TypeSpecificID; got != standard {
		t.Errorf("the default pool got %s, want %s", got, standard)
	}
	named := w.deploy(w.stack("z"), steps(1, object{"agentPoolID": a.ID}))
	if w.claim(b) != nil {
		t.Error("a pool claimed a deployment that names another pool")
	}
	if got := w.mustClaim(a).job.TypeSpecificID; got != named {
		t.Errorf("the named pool got %s, want %s", got, named)
	}
}

func TestExpire(t *testing.T) {
	w := newWorld(t)
	at := w.stack("s")
	id := w.deploy(at, steps(1))
	w.expireAfter(6 * 24 * time.Hour)
	w.shows(at, id, notStarted, notStarted, notStarted)
	w.expireAfter(8 * 24 * time.Hour)
	w.shows(at, id, skipped, notStarted, notStarted)
}
