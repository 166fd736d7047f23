package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// leftover returns a pool as the labels of its instances describe it.
func leftover(name, service string) runtime.PoolSpec {
	return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Service: service}, Leftover: true}
}

func TestDiffLeftovers(t *testing.T) {
	old, spec := leftover("a", "one"), pool("a", "one", 1)
	leftovers := map[string]runtime.PoolSpec{old.Key(): old}
	for name, c := range map[string]struct {
		desired []runtime.PoolSpec
		pools   map[string]runtime.PoolState
		want    string
	}{
		"a pool that is neither desired nor observed is started": {nil, nil,
			"adopt instances of pool a, which is no longer configured\n"},
		"a desired pool adopts its instances itself": {[]runtime.PoolSpec{spec}, nil, "start pool a\n"},
		"a running pool adopts its instances itself": {nil,
			map[string]runtime.PoolState{spec.Key(): {Spec: spec, Phase: runtime.PoolDraining}}, ""},
		"a leftover pool that is desired again is revived": {
			[]runtime.PoolSpec{spec}, map[string]runtime.PoolState{
				spec.Key(): {Spec: old, Phase: runtime.PoolDraining}}, "revive pool a\n",
		},
		"a leftover pool that has stopped is removed": {nil,
			map[string]runtime.PoolState{spec.Key(): {Spec: old, Phase: runtime.PoolStopped}}, "remove pool a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := reconcile.Diff(desiredState(1, c.desired...),
				reconcile.Observed{Pools: c.pools, Leftovers: leftovers, Process: desiredState(1).Process})
			if plan.String() != c.want {
				t.Errorf("the plan is %q, want %q", plan, c.want)
			}
		})
	}
}

// followLeftovers runs FollowLeftovers with this list until the end of the test.
func (h *loopTest) followLeftovers(list reconcile.Leftovers) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.loop.FollowLeftovers(ctx, list) }()
	h.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			h.Error(err)
		}
	})
	pass(0)
}

func TestFollowLeftovers(t *testing.T) {
	withLoop(t, "a pool that is no longer configured drains and does not delay readiness", func(h *loopTest) {
		h.begin = func(p *fakePool) {
			if p.spec.Name == "old" {
				p.jobs = 1
			}
		}
		h.want(1, pool("new", "one", 1))
		h.setLeftovers(leftover("old", "one"), leftover("new", "one"))
		pass(time.Hour)
		h.wantPools(2)
		h.wantTries("new", 1)
		h.wantTries("old", 1)
		h.wantPhase(h.pool("old"), runtime.PoolDraining)
		h.wantConverged()
		h.wantReady(true)
		h.want(2, pool("new", "one", 2))
		h.wantApplied(2)
		h.pool("old").has(0)
		pass(time.Second)
		h.wantPools(1)
		h.wantProblems(0)
	})
	for _, when := range []string{"during", "after"} {
		withLoop(t, "a pool that is configured again "+when+" its build is revived", func(h *loopTest) {
			h.begin = func(p *fakePool) { p.jobs = 1 }
			open := h.gate("old")
			h.want(1, pool("new", "one", 1))
			h.setLeftovers(leftover("old", "one"))
			if when == "after" {
				open()
			}
			if phase := h.phases()["old"]; phase != runtime.PoolDraining {
				h.Errorf("the leftover pool is %s, want draining", phase)
			}
			h.want(2, pool("new", "one", 1), pool("old", "one", 3))
			if when == "during" {
				open()
			}
			h.wantClaiming("new one 1, old one 3")
			h.wantTries("old", 1)
			if h.pool("old").State().Spec.Leftover {
				h.Error("the pool still has the spec of a leftover")
			}
		})
	}
	withLoop(t, "a failed list is retried", func(h *loopTest) {
		h.want(1, pool("new", "one", 1))
		lists := 0
		h.followLeftovers(func(context.Context, map[string]runtime.PoolSpec) ([]runtime.PoolSpec, error) {
			if lists++; lists <= 5 {
				return nil, errors.New("the engine is down")
			}
			return []runtime.PoolSpec{leftover("old", "one")}, nil
		})
		pass(time.Minute)
		if h.pool("old") == nil {
			h.Errorf("after a minute and %d lists the leftover pool was not started", lists)
		}
		h.wantLogged(1, "cannot list instances") // one warning for a series of failures
		h.wantReady(true)
	})
	withLoop(t, "a pool that cannot be built is tried again after the next list", func(h *loopTest) {
		h.want(1, pool("new", "one", 1))
		h.fail("old", errors.New("no such target"))
		h.setLeftovers(leftover("old", "one"))
		pass(9 * time.Minute)
		h.wantTries("old", 1)
		h.wantReady(true)
		h.wantProblems(0)
		h.fail("old", nil)
		pass(2 * time.Minute)
		if h.pool("old") == nil {
			h.Error("the pool was not built again")
		}
	})
}

// targetRecord is a [reconcile.TargetRecord] in memory.
type targetRecord struct{ targets, removed []string }

func (r *targetRecord) Targets() []string          { return slices.Clone(r.targets) }
func (r *targetRecord) RemoveTarget(target string) { r.removed = append(r.removed, target) }

// sweeper is an executor that records its sweeps.
type sweeper struct {
	*runtimetest.Executor
	fails  error
	swept  []runtime.InstanceSpec
	closed int
}

func (s *sweeper) Sweep(_ context.Context, places []runtime.InstanceSpec) ([]string, error) {
	s.swept = append(s.swept, places...)
	return []string{"volume-1"}, s.fails
}

func TestRecovery(t *testing.T) {
	ours := func(target string) runtime.Job {
		spec := runtime.PoolSpec{Name: "of-" + target, Identity: runtime.Identity{Target: target}}
		return runtime.Job{ID: "job-" + target, Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity,
			Agent: "agent-1"}
	}
	desired := map[string]runtime.PoolSpec{}
	for _, directory := range []string{"/a", "/b"} {
		spec := runtime.PoolSpec{Name: directory, Identity: runtime.Identity{Target: "process"}}
		spec.Tuning.Instance.WorkingDirectory = directory
		desired[spec.Key()] = spec
	}
	for name, c := range map[string]struct {
		used    []string         // deploy_targets of earlier runs
		with    []string         // deploy_targets that have an instance
		broken  map[string]error // errors of executors that cannot be opened
		fails   error            // error of each sweep
		found   []string         // names of pools
		removed []string
		err     string
		logged  string
	}{
		"instances at a target of an earlier run are found": {
			used: []string{"docker"}, with: []string{"docker", "process"}, found: []string{"of-docker", "of-process"},
			logged: "volume-1",
		},
		"a target without instances is forgotten": {
			used: []string{"docker"}, with: []string{"process"}, found: []string{"of-process"},
			removed: []string{"docker"},
		},
		"without instances at any target each target is forgotten": {
			used: []string{"docker"}, removed: []string{"docker", "process"},
		},
		"a target of another release is forgotten": {
			used: []string{"moon"}, with: []string{"moon", "process"}, found: []string{"of-process"},
			removed: []string{"moon"},
		},
		"a target that fails keeps its record and the others are listed": {
			used: []string{"docker"}, with: []string{"process"},
			broken: map[string]error{"docker": errors.New("no engine")},
			found:  []string{"of-process"}, err: "deploy_target docker: no engine",
		},
		"a target that fails keeps its record although no target has instances": {
			used: []string{"docker"}, broken: map[string]error{"docker": errors.New("no engine")},
			removed: []string{"process"}, err: "deploy_target docker: no engine",
		},
		"a sweep that fails is only logged": {
			with: []string{"process"}, fails: errors.New("volume in use"), found: []string{"of-process"},
			logged: "volume in use",
		},
	} {
		t.Run(name, func(t *testing.T) {
			executors := map[string]*sweeper{}
			for _, target := range []string{"docker", "process", "moon"} {
				executors[target] = &sweeper{Executor: runtimetest.NewExecutor(), fails: c.fails}
				if job := ours(target); slices.Contains(c.with, target) {
					executors[target].Adopt(&job, time.Now())
				}
			}
			var log strings.Builder
			record := &targetRecord{targets: c.used}
			recovery := reconcile.Recovery{
				Agent: "agent-1", Record: record, Supported: []string{"docker", "process"},
				Log: slog.New(slog.NewTextHandler(&log, nil)),
				Executor: func(_ context.Context, target string) (runtime.Executor, func(), error) {
					return executors[target], func() { executors[target].closed++ }, c.broken[target]
				},
			}
			specs, err := recovery.List(t.Context(), desired)
			var found []string
			for _, spec := range specs {
				if found = append(found, spec.Name); !spec.Leftover {
					t.Errorf("pool %s is not marked as a leftover", spec.Name)
				}
			}
			if !slices.Equal(found, c.found) || !slices.Equal(record.removed, c.removed) {
				t.Errorf("found %v, want %v; forgotten %v, want %v", found, c.found, record.removed, c.removed)
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != c.err {
				t.Errorf("the error is %q, want %q", text, c.err)
			}
			if process := executors["process"]; len(process.swept) != 2 || process.closed != 1 ||
				executors["moon"].closed > 0 {
				t.Errorf("swept %v and closed %d times, want two sweeps and one close", process.swept, process.closed)
			}
			if len(executors["docker"].swept) > 0 {
				t.Errorf("docker is swept for pools of another target: %v", executors["docker"].swept)
			}
			if !strings.Contains(log.String(), c.logged) {
				t.Errorf("the log has no %q:\n%s", c.logged, log.String())
			}
		})
	}
}

// orphanExecutor is an executor with instances of agents that no longer exist.
type orphanExecutor struct {
	*runtimetest.Executor
	orphans []runtime.Job
	fails   error
}

func (o *orphanExecutor) LeavesJobs() bool { return true }

func (o *orphanExecutor) Replaced(context.Context) bool { return false }

var _ runtime.Adopter = (*orphanExecutor)(nil)

func (o *orphanExecutor) AdoptOrphans(
	_ context.Context, accept func(pool string) bool,
) (adopted []runtime.Instance, _ error) {
	for _, job := range o.orphans {
		if accept(job.Pool) {
			job.Agent = "agent-1"
			id := o.Adopt(&job, time.Now())
			adopted = append(adopted, runtime.Instance{ID: id, Pool: job.Pool, PoolName: job.PoolName, Job: job.ID})
		}
	}
	return adopted, o.fails
}

func TestRecoveryAdoptsOrphans(t *testing.T) {
	spec := func(name string) runtime.PoolSpec {
		return runtime.PoolSpec{Name: name, Identity: runtime.Identity{Target: "kubernetes"}}
	}
	orphan := func(id string, spec runtime.PoolSpec) runtime.Job {
		return runtime.Job{ID: id, Pool: spec.Key(), PoolName: spec.Name, Identity: spec.Identity, Agent: "agent-gone"}
	}
	for name, fails := range map[string]error{
		"AdoptOrphans succeeds": nil, "AdoptOrphans fails after one job": errors.New("the API server is slow"),
	} {
		t.Run(name, func(t *testing.T) {
			executor := &orphanExecutor{
				Executor: runtimetest.NewExecutor(), fails: fails,
				orphans: []runtime.Job{orphan("job-1", spec("desired")), orphan("job-2", spec("removed"))},
			}
			var log strings.Builder
			recovery := reconcile.Recovery{
				Agent: "agent-1", Record: &targetRecord{}, Supported: []string{"kubernetes"},
				Log: slog.New(slog.NewTextHandler(&log, nil)),
				Executor: func(context.Context, string) (runtime.Executor, func(), error) {
					return executor, func() {}, nil
				},
			}
			desired := map[string]runtime.PoolSpec{spec("desired").Key(): spec("desired")}
			specs, err := recovery.List(t.Context(), desired)
			if err != nil || len(specs) != 1 || specs[0].Key() != spec("removed").Key() || !specs[0].Leftover {
				t.Errorf("found %+v, %v, want the pool that is not desired", specs, err)
			}
			if !strings.Contains(log.String(), "job=job-2") || strings.Contains(log.String(), "job=job-1") {
				t.Errorf("the log:\n%s", &log)
			}
		})
	}
}

func TestRecoveryListsRecords(t *testing.T) {
	journal := runtimetest.NewJournal()
	for _, target := range []string{"docker", "moon"} {
		err := journal.Add(t.Context(), runtime.Record{
			Job: "job-of-" + target, Pool: "key", PoolName: "of-" + target, Claimed: time.Now(), CA: "certificates",
			Identity: runtime.Identity{Service: "http://service", Target: target}, Stage: runtime.RecordClaimed,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	engine := runtimetest.NewExecutor()
	recovery := reconcile.Recovery{
		Agent: "agent-1", Record: &targetRecord{}, Journal: journal, Supported: []string{"docker", "process"},
		Log:      slog.New(slog.DiscardHandler),
		Executor: func(context.Context, string) (runtime.Executor, func(), error) { return engine, func() {}, nil },
	}

	t.Run("a pool of a record is a leftover, with the certificates of the claim", func(t *testing.T) {
		specs, err := recovery.List(t.Context(), nil)
		if err != nil || len(specs) != 1 || specs[0].Name != "of-docker" || !specs[0].Leftover ||
			specs[0].Tuning.CA != "certificates" || specs[0].Tuning.RequestTimeout <= 0 {
			t.Errorf("the pools are %+v, the error is %v", specs, err)
		}
	})
	t.Run("records that cannot be listed are an error", func(t *testing.T) {
		journal.Fail(runtimetest.ListRecords, 1, errors.New("input/output error"))
		if _, err := recovery.List(t.Context(), nil); err == nil {
			t.Error("List returned no error")
		}
	})
}
