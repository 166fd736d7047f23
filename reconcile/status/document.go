package status

import (
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/report"
)

// Version is the version of the [Document]. It grows when a client of an earlier
// version would misread the Document.
const Version = 4

// Document is the response to GET /status. Times are those of the agent's clock, in
// UTC. A field with omitempty or omitzero is omitted if it is false, unknown or does not apply.
type Document struct {
	Version int       `json:"version"`
	Now     time.Time `json:"now"`
	Agent   Agent     `json:"agent"`
	Healthy bool      `json:"healthy"` // liveness: no pool's loop is stuck
	Ready   bool      `json:"ready"`   // readiness: every pool can claim and run jobs

	// Converged reports whether the last accepted generation is fully in force. It can
	// be true while the present file is rejected.
	Converged bool      `json:"converged"`
	Stopping  bool      `json:"stopping,omitempty"`
	StopAt    time.Time `json:"stopAt,omitzero"`   // while stopping: time of the stop of jobs; absent from then on
	MaxJobs   int       `json:"maxJobs,omitempty"` // limit of all pools together; 0 is unlimited
	Config    Config    `json:"config"`
	Pools     []Pool    `json:"pools"`             // running pools, and desired pools that do not run
	Problem   string    `json:"problem,omitempty"` // why the agent as a whole cannot apply its configuration
	Reload    *Reload   `json:"lastReload,omitempty"`

	Ended []EndedJob `json:"endedJobs,omitempty"` // the last jobs that this process ended, the last one first

	NotReady []reconcile.Unready `json:"notReady,omitempty"` // reasons why Ready is false
}

// OK reports whether the agent needs no attention: it is healthy and ready, and the
// present file is fully in force.
func (d Document) OK() bool {
	return d.Healthy && d.Ready && d.Converged && d.Config.Rejection == nil
}

// Agent describes the process.
type Agent struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
	Directory string    `json:"directory,omitempty"` // working directory
	Warnings  []string  `json:"warnings,omitempty"`  // about what the process could not open when it started
}

// Config describes the configuration in force, and a rejected file.
type Config struct {
	Path       string           `json:"path,omitempty"` // absolute; empty for an agent without a file
	Digest     string           `json:"digest"`         // of the desired generation
	Desired    uint64           `json:"desired"`        // desired generation: the last accepted configuration
	Applied    uint64           `json:"applied"`        // last generation that was fully in force
	AcceptedAt time.Time        `json:"acceptedAt"`     // when the desired generation was accepted
	AppliedAt  time.Time        `json:"appliedAt,omitzero"`
	RejectedAt time.Time        `json:"rejectedAt,omitzero"`     // of the last rejection, even if the edit was undone
	Accepted   uint64           `json:"accepted"`                // number of accepted configurations since the start
	Rejected   uint64           `json:"rejected"`                // number of rejected configurations since the start
	Seconds    float64          `json:"loadSeconds"`             // time for reading and checking the desired generation
	Rejection  *Rejection       `json:"rejection,omitempty"`     // of the present file
	Warnings   []report.Problem `json:"warnings,omitempty"`      // of the configuration in force
	Watch      string           `json:"watch"`                   // how changes of files are detected: events or polling
	Frozen     []string         `json:"frozen,omitempty"`        // files whose replacement cannot be detected
	Restart    []string         `json:"restartNeeded,omitempty"` // keys that take effect when the agent is restarted
}

// Rejection describes a file that the agent does not use.
type Rejection struct {
	At       time.Time        `json:"at"`
	Reason   string           `json:"reason,omitempty"` // set if Problems is empty
	Problems []report.Problem `json:"problems"`
}

// Reload lists the changes of the last accepted configuration.
type Reload struct {
	At       time.Time `json:"at"`
	Changes  []Change  `json:"changes"` // the agent's first, then those of each pool
	Started  []string  `json:"started"` // names of pools
	Drained  []string  `json:"drained"`
	Replaced []string  `json:"replaced"`
}

// Change is a changed key of the configuration. The values are as in a file, with a
// mark in place of a secret. An empty value means that the key is unset. A long value is cut.
type Change struct {
	Pool   string `json:"pool,omitempty"` // name; empty is the agent as a whole
	Key    string `json:"key"`
	From   string `json:"from"`
	To     string `json:"to"`
	Effect string `json:"effect"` // when the change takes effect: a reconcile.Effect
}

// Pool describes a running pool, or a desired pool that does not run.
type Pool struct {
	Name         string    `json:"name"`
	Key          string    `json:"key"`   // differs between a pool and the pool of the same name that it replaces
	Phase        string    `json:"phase"` // PhaseMissing, or a phase of package runtime
	Until        time.Time `json:"until,omitzero"`
	Reason       string    `json:"reason,omitempty"`  // of the phase
	Problem      string    `json:"problem,omitempty"` // why the pool cannot start, poll or start jobs
	Paused       bool      `json:"paused,omitempty"`  // by cmwa pause
	Stuck        bool      `json:"stuck,omitempty"`   // no progress within health_threshold: the agent is unhealthy
	Generation   uint64    `json:"generation"`
	Target       string    `json:"target"`
	Context      string    `json:"context,omitempty"`   // of the kubeconfig, if it is set
	Namespace    string    `json:"namespace,omitempty"` // of the Pods, if it is set
	Service      string    `json:"service"`
	MaxJobs      int       `json:"maxJobs"`
	ProgressAt   time.Time `json:"progressAt,omitzero"`
	AnsweredAt   time.Time `json:"answeredAt,omitzero"` // time of the last response to a poll, or about a job
	FailingSince time.Time `json:"failingSince,omitzero"`
	BreakerOpen  bool      `json:"breakerOpen,omitempty"` // whether the circuit breaker of its polls is open
	TokenExpiry  time.Time `json:"tokenExpiry,omitzero"`  // expiry of a token from an OIDC exchange
	Jobs         []Job     `json:"jobs"`
}

// PhaseMissing is the phase of a desired pool that does not run.
const PhaseMissing = "missing"

// EndedJob describes a job that has ended. Its phase is the last one.
type EndedJob struct {
	Job

	Pool    string    `json:"pool"`    // name
	Outcome string    `json:"outcome"` // a runtime.Outcome
	EndedAt time.Time `json:"endedAt"`
}

// Job describes a job. The names are those of the log.
type Job struct {
	Job          string    `json:"job"`                  // id
	Kind         string    `json:"kind"`                 // as in enabled_workflow_types; empty if unknown
	Deployment   string    `json:"deployment,omitempty"` // id
	Activity     string    `json:"activity,omitempty"`   // id of a scan or policy evaluation
	Organization string    `json:"organization,omitempty"`
	Project      string    `json:"project,omitempty"`
	Stack        string    `json:"stack,omitempty"`
	Operation    string    `json:"operation,omitempty"`
	Version      string    `json:"version,omitempty"` // number of the operation in the stack
	URL          string    `json:"url,omitempty"`     // of the job's page
	Phase        string    `json:"phase"`
	Instance     string    `json:"instance,omitempty"` // id of its container, Pod or directory
	Since        time.Time `json:"since"`

	Stages []Stage `json:"stages,omitempty"` // that have ended, in order
}

// Stage describes a stage of a job, which may have failed.
type Stage struct {
	Stage   string  `json:"stage"` // a runtime.Stage
	Seconds float64 `json:"seconds"`
}
