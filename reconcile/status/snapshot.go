package status

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Snapshots is what a [Document] is made of. Each function returns the present
// state and is safe for concurrent use.
type Snapshots struct {
	Version   string // of the program
	StartedAt time.Time
	Config    func() reconcile.View
	Loop      func() reconcile.Status
	WatchMode func() watch.Mode
}

// Document returns the state at a time. The configuration is read last, so that a
// generation that the loop has not received yet is reported as not converged.
func (s Snapshots) Document(now time.Time) Document {
	loop := s.Loop()
	view := s.Config()
	directory, _ := os.Getwd()
	d := Document{
		Version:   Version,
		Now:       now.UTC(),
		Agent:     Agent{Version: s.Version, PID: os.Getpid(), StartedAt: s.StartedAt.UTC(), Directory: directory},
		Healthy:   loop.Healthy(now),
		Ready:     loop.Ready(now),
		NotReady:  reasonsOf(loop, now),
		Converged: loop.Converged() && loop.Applied == view.Generation,
		Stopping:  loop.Stopping,
		Config:    configOf(view),
		Pools:     poolsOf(view, loop, now),
		Problem:   loop.Problems[reconcile.ProcessKey],
	}
	d.Config.Applied, d.Config.AppliedAt = loop.Applied, loop.AppliedAt.UTC()
	d.Config.Watch = string(s.WatchMode())
	if view.LastReload != nil {
		d.Reload = reloadOf(view)
	}
	return d
}

// configOf returns the part of a Document that a view of the configuration holds.
func configOf(view reconcile.View) Config {
	c := Config{
		Desired: view.Generation, AcceptedAt: view.AcceptedAt.UTC(), Accepted: view.Accepted, Seconds: view.Seconds,
		RejectedAt: view.RejectedAt.UTC(), Rejected: view.Rejected, Frozen: view.Frozen,
	}
	if view.Config != nil {
		c.Digest = view.Config.Digest
		if view.Config.Path != "" {
			c.Path = absolute(view.Config.Path)
		}
	}
	if len(view.Warnings) > 0 {
		c.Warnings = problemsOf(view.Warnings)
	}
	if r := view.Rejection; r != nil {
		c.Rejection = &Rejection{At: r.At.UTC(), Reason: r.Reason, Problems: problemsOf(r.Problems.Errors())}
	}
	return c
}

// absolute returns the absolute form of a path, or the path itself if there is no
// working directory.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

// problemsOf returns problems in the form of a Document.
func problemsOf(problems position.Problems) []report.Problem {
	list := []report.Problem{}
	for _, p := range problems {
		list = append(list, report.NewProblem(p))
	}
	return list
}

// reasonsOf returns the reasons why the agent is not ready.
func reasonsOf(s reconcile.Status, now time.Time) (reasons []Reason) {
	for _, r := range s.Unready(now) {
		reasons = append(reasons, Reason{r.Pool, r.Reason})
	}
	return reasons
}

// poolsOf returns the running pools, then the desired ones that do not run.
func poolsOf(view reconcile.View, loop reconcile.Status, now time.Time) []Pool {
	list := []Pool{}
	running := map[string]bool{}
	for _, state := range loop.Pools {
		p := poolOf(state.Spec, string(state.Phase), loop.Problems)
		p.Until, p.Why, p.ProgressAt = state.Until.UTC(), state.Why, now.Add(-state.Overdue(now)).UTC()
		p.AnsweredAt, p.FailingSince = state.AnsweredAt.UTC(), state.FailingSince.UTC()
		if p.Problem == "" && state.Err != nil {
			p.Problem = state.Err.Error()
		}
		p.Problem, p.Stuck = cmp.Or(p.Problem, state.ExecutorProblem, state.Failing), loop.Stuck(state, now)
		for _, j := range state.Jobs {
			p.Jobs = append(p.Jobs, Job{j.ID, j.Subject, string(j.Phase), j.Since.UTC()})
		}
		running[p.Key] = true
		list = append(list, p)
	}
	if view.Config == nil || loop.Stopping {
		return list
	}
	desired := reconcile.Want(view.Config, view.Generation)
	for _, key := range slices.Sorted(maps.Keys(desired.Pools)) {
		if !running[key] {
			list = append(list, poolOf(desired.Pools[key], PhaseMissing, loop.Problems))
		}
	}
	return list
}

// poolOf returns what a spec determines of a pool. Problems are by key.
func poolOf(spec runtime.PoolSpec, phase string, problems map[string]string) Pool {
	key := spec.Key()
	return Pool{
		Name: spec.Name, Key: key, Phase: phase, Problem: problems[key], Generation: spec.Generation,
		Target: spec.Identity.Target, Service: spec.Identity.Service, MaxJobs: spec.Tuning.MaxJobs, Jobs: []Job{},
	}
}

// reloadOf returns what the last reload changed, by when it takes effect.
func reloadOf(view reconcile.View) *Reload {
	effects := reconcile.ByEffect(view.LastReload)
	r := &Reload{
		At: view.AcceptedAt.UTC(), Now: []Key{}, NextJob: keysOf(effects.NextJob), NeedsRestart: keysOf(effects.NeedsRestart),
		Started: []string{}, Drained: []string{}, Replaced: append([]string{}, effects.Replaced...),
	}
	for _, e := range effects.Now {
		switch e.Fate {
		case reconcile.Started:
			r.Started = append(r.Started, e.Pool)
		case reconcile.Drained:
			r.Drained = append(r.Drained, e.Pool)
		default:
			r.Now = append(r.Now, Key{e.Pool, e.Change.Key})
		}
	}
	return r
}

func keysOf(effects []reconcile.Effect) []Key {
	keys := []Key{}
	for _, e := range effects {
		keys = append(keys, Key{e.Pool, e.Change.Key})
	}
	return keys
}
