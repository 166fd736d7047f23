package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/position"
)

// account is what the agent's HTTP server tells of. Everything it tells comes
// from these snapshots at the time of the question; it keeps nothing.
type account struct {
	started time.Time
	config  func() reconcile.View
	loop    func() reconcile.Status
	mode    func() watch.Mode
}

// answers is the handler of the agent's HTTP server: GET /healthz, /readyz,
// /status and /metrics. Who can reach the port can read them all, so none holds
// what a key is set to, except what a pool is called and where it belongs, and for
// harmless numbers and words in warnings.
func (a *account) answers() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", health(a.loop))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(a.document(time.Now()))
	})
	mux.Handle("GET /metrics", metricsOf(a))
	return mux
}

// health answers GET /healthz (liveness), with the three fields that the original
// has and a few more, and GET /readyz (readiness), with the reasons if the agent is
// not ready. No is 503.
func health(status func() reconcile.Status) http.Handler {
	type pool struct {
		Name  string    `json:"name"`
		Phase string    `json:"phase"`
		Until time.Time `json:"until,omitzero"`
		Why   string    `json:"why,omitempty"`
		Stuck bool      `json:"stuck,omitempty"` // its loop stands still
		Error string    `json:"problem,omitempty"`
		Jobs  int       `json:"jobs"`
	}
	type body struct {
		Status       string            `json:"status"`
		CurrentTime  time.Time         `json:"currentTime"`
		LastActivity time.Time         `json:"lastActivity"`
		Generation   uint64            `json:"generation"`
		Pools        []pool            `json:"pools"`
		Problems     map[string]string `json:"problems,omitempty"`
		NotReady     []statusReason    `json:"notReady,omitempty"`
	}
	answer := func(w http.ResponseWriter, good bool, words [2]string, s reconcile.Status, now time.Time) {
		b := body{words[0], now.UTC(), s.LastProgress().UTC(), s.Applied, []pool{}, s.Problems, reasonsOf(s, now)}
		if len(s.Pools) == 0 {
			b.LastActivity = now.UTC() // there is no loop that could stand still
		}
		for _, p := range s.Pools {
			b.Pools = append(b.Pools, pool{p.Spec.Name, string(p.Phase), p.Until, p.Why, s.Stuck(p, now), cmp.Or(p.ExecutorProblem, p.Failing), len(p.Jobs)})
		}
		w.Header().Set("Content-Type", "application/json")
		if !good {
			b.Status = words[1]
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(b)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, now := status(), time.Now()
		answer(w, s.Healthy(now), [2]string{"healthy", "unhealthy"}, s, now)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s, now := status(), time.Now()
		answer(w, s.Ready(now), [2]string{"ready", "not ready"}, s, now)
	})
	return mux
}

// statusVersion grows when a reader of an earlier status would go wrong.
const statusVersion = 2

// statusDocument is the answer of GET /status. Times are those of the agent's
// clock, in UTC; what is not so, or not known, is left out.
type statusDocument struct {
	Version   int           `json:"version"`
	Now       time.Time     `json:"now"`
	Agent     statusAgent   `json:"agent"`
	Healthy   bool          `json:"healthy"`   // the loops turn
	Ready     bool          `json:"ready"`     // jobs are claimed, for every pool
	Converged bool          `json:"converged"` // what the last good configuration says is what runs, in full, also while the file as it stands is refused
	Stopping  bool          `json:"stopping,omitempty"`
	Config    statusConfig  `json:"config"`
	Pools     []statusPool  `json:"pools"`             // those that run, and those that should
	Problem   string        `json:"problem,omitempty"` // of the agent as a whole: why it cannot be what it should
	Reload    *statusReload `json:"lastReload,omitempty"`

	NotReady []statusReason `json:"notReady,omitempty"` // there if Ready is not
}

// statusReason is one reason why the agent is not ready.
type statusReason struct {
	Pool   string `json:"pool,omitempty"` // none is the agent as a whole
	Reason string `json:"reason"`
}

// reasonsOf shapes the reasons why the agent is not ready.
func reasonsOf(s reconcile.Status, now time.Time) (reasons []statusReason) {
	for _, r := range s.Unready(now) {
		reasons = append(reasons, statusReason{r.Pool, r.Reason})
	}
	return reasons
}

type statusAgent struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	Directory string    `json:"directory,omitempty"` // working directory, from which relative names count
}

// statusConfig tells of the configuration that is in force, and of a refused one.
type statusConfig struct {
	Path       string           `json:"path,omitempty"` // absolute; none is an agent without a file
	Digest     string           `json:"digest"`         // of the generation that is wanted
	Desired    uint64           `json:"desired"`        // generation that is wanted: the last good one
	Applied    uint64           `json:"applied"`        // last generation that was reached in full
	AcceptedAt time.Time        `json:"acceptedAt"`     // when the last good one was taken
	AppliedAt  time.Time        `json:"appliedAt,omitzero"`
	RejectedAt time.Time        `json:"rejectedAt,omitzero"` // when one was refused last, though it may have been undone
	Accepted   uint64           `json:"accepted"`            // how many since the start
	Rejected   uint64           `json:"rejected"`            // how many since the start
	Seconds    float64          `json:"loadSeconds"`         // that reading and checking the last good one took
	Rejection  *statusRejection `json:"rejection,omitempty"` // of what the file says now
	Warnings   []vetProblem     `json:"warnings,omitempty"`  // of what is in force
	Watch      string           `json:"watch"`               // events or polling
	Frozen     []string         `json:"frozen,omitempty"`    // files that are mounted by themselves, so that one that replaces them is never seen
}

type statusRejection struct {
	At       time.Time    `json:"at"`
	Reason   string       `json:"reason,omitempty"`
	Problems []vetProblem `json:"problems"`
}

// statusReload is what the last accepted change did, by when it takes effect.
type statusReload struct {
	At           time.Time   `json:"at"`
	Now          []statusKey `json:"now"`
	NextJob      []statusKey `json:"nextJob"`
	NeedsRestart []statusKey `json:"needsRestart"`
	Started      []string    `json:"started"` // names of pools
	Drained      []string    `json:"drained"`
	Replaced     []string    `json:"replaced"`
}

type statusKey struct {
	Pool string `json:"pool,omitempty"` // none is the agent as a whole
	Key  string `json:"key"`
}

type statusPool struct {
	Name         string      `json:"name"`
	Key          string      `json:"key"`   // tells a pool from one of the same name that it replaces
	Phase        string      `json:"phase"` // missing is a pool that should run and cannot
	Until        time.Time   `json:"until,omitzero"`
	Why          string      `json:"why,omitempty"`
	Problem      string      `json:"problem,omitempty"` // why it does not work, or did not when it asked for work last
	Stuck        bool        `json:"stuck,omitempty"`   // its loop has not turned within health_threshold: the reason why the agent is unhealthy
	Generation   uint64      `json:"generation"`
	Target       string      `json:"target"`
	Service      string      `json:"service"`
	MaxJobs      int         `json:"maxJobs"`
	ProgressAt   time.Time   `json:"progressAt,omitzero"`
	AnsweredAt   time.Time   `json:"answeredAt,omitzero"` // when the service last answered a poll, or about a job
	FailingSince time.Time   `json:"failingSince,omitzero"`
	Jobs         []statusJob `json:"jobs"`
}

type statusJob struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`
}

// missing is the phase of a pool that should run and cannot.
const missing = "missing"

// document takes a snapshot of everything. The configuration is looked at last:
// a generation that the loop has not heard of yet is told as not reached.
func (a *account) document(now time.Time) statusDocument {
	loop := a.loop()
	view := a.config()
	directory, _ := os.Getwd()
	document := statusDocument{
		Version: statusVersion, Now: now.UTC(),
		Agent:   statusAgent{Version: cli.Version(), PID: os.Getpid(), StartedAt: a.started.UTC(), Directory: directory},
		Healthy: loop.Healthy(now), Ready: loop.Ready(now), NotReady: reasonsOf(loop, now),
		Converged: loop.Converged() && loop.Applied == view.Generation, Stopping: loop.Stopping,
		Config: statusConfig{
			Desired: view.Generation, Applied: loop.Applied, AcceptedAt: view.AcceptedAt.UTC(), AppliedAt: loop.AppliedAt.UTC(),
			RejectedAt: view.RejectedAt.UTC(), Accepted: view.Accepted, Rejected: view.Rejected, Seconds: view.Seconds,
			Watch: string(a.mode()), Frozen: view.Frozen,
		},
		Pools:   pools(view, loop, now),
		Problem: loop.Problems[reconcile.ProcessKey],
	}
	if view.Config != nil {
		document.Config.Digest = view.Config.Digest
		if view.Config.Path != "" {
			document.Config.Path = absolute(view.Config.Path)
		}
	}
	if len(view.Warnings) > 0 {
		document.Config.Warnings = problemsOf(view.Warnings)
	}
	if r := view.Rejection; r != nil {
		document.Config.Rejection = &statusRejection{At: r.At.UTC(), Reason: r.Reason, Problems: problemsOf(r.Problems.Errors())}
	}
	if view.LastReload != nil {
		document.Reload = reloadOf(view)
	}
	return document
}

// problemsOf shapes problems as cmwa vet does.
func problemsOf(problems position.Problems) []vetProblem {
	var findings []finding
	for _, p := range problems {
		findings = append(findings, finding{Problem: p})
	}
	return jsonOf(findings).Problems
}

// pools tells of the pools that run, and of those that should.
func pools(view reconcile.View, loop reconcile.Status, now time.Time) []statusPool {
	list := []statusPool{}
	there := map[string]bool{}
	of := func(spec runtime.PoolSpec, phase string) statusPool {
		key := spec.Key()
		there[key] = true
		return statusPool{
			Name: spec.Name, Key: key, Phase: phase, Problem: loop.Problems[key], Generation: spec.Generation,
			Target: spec.Identity.Target, Service: spec.Identity.Service, MaxJobs: spec.Tuning.MaxJobs, Jobs: []statusJob{},
		}
	}
	for _, state := range loop.Pools {
		p := of(state.Spec, string(state.Phase))
		p.Until, p.Why, p.ProgressAt = state.Until.UTC(), state.Why, state.Progress.UTC()
		p.AnsweredAt, p.FailingSince = state.AnsweredAt.UTC(), state.FailingSince.UTC()
		if p.Problem == "" && state.Err != nil {
			p.Problem = state.Err.Error()
		}
		p.Problem, p.Stuck = cmp.Or(p.Problem, state.ExecutorProblem, state.Failing), loop.Stuck(state, now)
		for _, j := range state.Jobs {
			p.Jobs = append(p.Jobs, statusJob{j.ID, j.Subject, string(j.Phase), j.Since.UTC()})
		}
		list = append(list, p)
	}
	if view.Config == nil || loop.Stopping {
		return list
	}
	wanted := reconcile.Want(view.Config, view.Generation)
	for _, key := range slices.Sorted(maps.Keys(wanted.Pools)) {
		if !there[key] {
			list = append(list, of(wanted.Pools[key], missing))
		}
	}
	return list
}

// reloadOf returns what the last reload changed, by when it takes effect.
func reloadOf(view reconcile.View) *statusReload {
	effects := reconcile.ByEffect(view.LastReload)
	r := &statusReload{
		At: view.AcceptedAt.UTC(), Now: []statusKey{}, NextJob: statusKeys(effects.NextJob),
		NeedsRestart: statusKeys(effects.NeedsRestart),
		Started:      []string{}, Drained: []string{}, Replaced: append([]string{}, effects.Replaced...),
	}
	for _, e := range effects.Now {
		switch e.Fate {
		case reconcile.Started:
			r.Started = append(r.Started, e.Pool)
		case reconcile.Drained:
			r.Drained = append(r.Drained, e.Pool)
		default:
			r.Now = append(r.Now, statusKey{e.Pool, e.Change.Key})
		}
	}
	return r
}

func statusKeys(effects []reconcile.Effect) []statusKey {
	keys := []statusKey{}
	for _, e := range effects {
		keys = append(keys, statusKey{e.Pool, e.Change.Key})
	}
	return keys
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
