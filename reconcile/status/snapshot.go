package status

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Snapshots are the sources of a [Document]. Each function returns the present
// state and is safe for concurrent use.
type Snapshots struct {
	Version   string // of the program
	StartedAt time.Time
	Warnings  []string // see Agent.Warnings
	Config    func() reconcile.ConfigState
	Loop      func() reconcile.Status
	WatchMode func() watch.Mode
	Counters  *Counters // may be nil

	// PodPhases returns the number of Pods of jobs by phase, or nil if no pool uses a cluster. It may
	// be nil.
	PodPhases func() map[string]int
}

// Document returns the state at a time. The state of the configuration is read last, so
// that a generation that the loop has not received yet counts as not converged.
func (s Snapshots) Document(now time.Time) Document {
	loop := s.Loop()
	config := s.Config()
	directory, _ := os.Getwd()
	d := Document{
		Version: Version,
		Now:     now.UTC(),
		Agent: Agent{
			Version: s.Version, PID: os.Getpid(), StartedAt: s.StartedAt.UTC(), Directory: directory,
			Warnings: s.Warnings,
		},
		Healthy:   loop.Healthy(now),
		Ready:     loop.Ready(now),
		NotReady:  loop.Unready(now),
		Converged: loop.Converged() && loop.Applied == config.Generation,
		Stopping:  loop.Stopping,
		StopAt:    loop.StopAt.UTC(),
		MaxJobs:   loop.Process.MaxJobs,
		Config:    configOf(config),
		Pools:     poolsOf(config, loop, now),
		Ended:     s.Counters.lastEnded(),
		Problem:   loop.Problems[reconcile.ProcessKey],
	}
	d.Config.Applied, d.Config.AppliedAt = loop.Applied, loop.AppliedAt.UTC()
	d.Config.Watch = string(s.WatchMode())
	if config.LastReload != nil {
		d.Reload = reloadOf(config)
	}
	return d
}

// configOf returns the part of a Document about the configuration.
func configOf(state reconcile.ConfigState) Config {
	c := Config{
		Desired: state.Generation, AcceptedAt: state.AcceptedAt.UTC(), Accepted: state.Accepted, Seconds: state.Seconds,
		RejectedAt: state.RejectedAt.UTC(), Rejected: state.Rejected, Frozen: state.Frozen,
		Restart: state.Restart,
	}
	if state.Config != nil {
		c.Digest = state.Config.Digest
		if state.Config.Path != "" {
			c.Path = state.Config.Paths()[0]
		}
	}
	if len(state.Warnings) > 0 {
		c.Warnings = problemsOf(state.Warnings)
	}
	if r := state.Rejection; r != nil {
		c.Rejection = &Rejection{At: r.At.UTC(), Reason: r.Reason, Problems: problemsOf(r.Problems.Errors())}
	}
	return c
}

// problemsOf returns problems in the form of a Document.
func problemsOf(problems position.Problems) []report.Problem {
	list := []report.Problem{}
	for _, p := range problems {
		list = append(list, report.NewProblem(p))
	}
	return list
}

// poolsOf returns the running pools, then the desired pools that do not run.
func poolsOf(config reconcile.ConfigState, loop reconcile.Status, now time.Time) []Pool {
	list := []Pool{}
	running := map[string]bool{}
	for _, state := range loop.Pools {
		p := poolOf(state.Spec, string(state.Phase), loop)
		p.Until, p.Reason, p.ProgressAt = state.Until.UTC(), state.Reason, now.Add(-state.Overdue(now)).UTC()
		p.AnsweredAt, p.FailingSince = state.AnsweredAt.UTC(), state.FailingSince.UTC()
		if p.Problem == "" && state.Err != nil {
			p.Problem = state.Err.Error()
		}
		p.BreakerOpen, p.TokenExpiry = state.Service.BreakerOpen, state.Service.TokenExpiry.UTC()
		p.Problem = cmp.Or(p.Problem, state.ExecutorProblem, state.PollError, state.Unserved)
		p.Stuck = loop.Stuck(state, now)
		for _, j := range state.Jobs {
			p.Jobs = append(p.Jobs, jobOf(j))
		}
		running[p.Key] = true
		list = append(list, p)
	}

	// Desired pools that do not run.
	if config.Config == nil || loop.Stopping {
		return list
	}
	desired := reconcile.Want(config.Config, config.Generation)
	for _, key := range slices.Sorted(maps.Keys(desired.Pools)) {
		if !running[key] {
			list = append(list, poolOf(desired.Pools[key], PhaseMissing, loop))
		}
	}
	return list
}

// jobOf returns a job.
func jobOf(j runtime.JobState) Job {
	name := func(text string) string { return printable.Shorten(text, maxValue) }
	job := Job{
		Job: j.ID, Kind: string(j.Kind), Organization: name(j.Work.Organization), Project: name(j.Work.Project),
		Stack: name(j.Work.Stack), Operation: name(j.Work.Operation), Version: name(j.Work.Version), URL: j.Work.URL,
		Phase: string(j.Phase), Instance: name(j.Instance), Since: j.Since.UTC(),
	}
	for _, s := range j.Stages {
		job.Stages = append(job.Stages, Stage{string(s.Stage), s.End.Sub(s.Start).Seconds()})
	}
	if j.Kind.Leased() {
		job.Activity = j.WorkflowID
	} else {
		job.Deployment = j.WorkflowID
	}
	return job
}

// poolOf returns a pool with the fields that its spec determines.
func poolOf(spec runtime.PoolSpec, phase string, loop reconcile.Status) Pool {
	key := spec.Key()
	return Pool{
		Name: spec.Name, Key: key, Phase: phase, Problem: loop.Problems[key], Generation: spec.Generation,
		Target: spec.Identity.Target, Service: spec.Identity.Service, MaxJobs: spec.Tuning.MaxJobs, Jobs: []Job{},
		Paused: loop.Paused[spec.Name], Context: spec.Identity.Context, Namespace: spec.Identity.Namespace,
	}
}

// reloadOf returns the changes of the last reload.
func reloadOf(state reconcile.ConfigState) *Reload {
	r := &Reload{
		At: state.AcceptedAt.UTC(), Changes: []Change{}, Started: []string{}, Drained: []string{}, Replaced: []string{},
	}
	for _, reload := range state.LastReload {
		switch reload.PoolChange {
		case reconcile.Started:
			r.Started = append(r.Started, reload.Pool)
		case reconcile.Drained:
			r.Drained = append(r.Drained, reload.Pool)
		case reconcile.Replaced:
			r.Replaced = append(r.Replaced, reload.Pool)
		}
		for _, c := range reload.Changes {
			from, to := printable.Shorten(c.From, maxValue), printable.Shorten(c.To, maxValue)
			r.Changes = append(r.Changes, Change{reload.Pool, c.Key, from, to, string(c.Effect)})
		}
	}
	return r
}

// maxValue is the largest length of a value in a [Change], and of a name in a [Job], in bytes. Each
// pool repeats the values that it inherits, and an inherited Pod template may be long.
const maxValue = 200
