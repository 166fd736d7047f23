package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// Executor creates, finds, follows and removes the instances of jobs: containers, Pods or
// process groups. Instances have labels for agent, pool, job and generation, so that List finds
// them after a restart of the agent. The form of an instance's id is up to the executor. All
// methods are safe for concurrent use. All except Start are safe to repeat. An executor of a
// cluster is also an [Adopter] and an [Explainer]; the others are [Interrupter].
type Executor interface {
	// Check returns nil if a job could be started now with these settings. Otherwise it
	// returns an error of one line with the reason and the hint. It finds only problems
	// that fail every job and that cost little to find, and starts nothing. A pool calls
	// Check before it polls, at most every five seconds, and every second while Check
	// returns an error. It returns soon after the end of ctx.
	Check(ctx context.Context, tuning Tuning) error

	// Start creates the job's instance and starts the runner in it. It logs its actions to
	// setup (the log of step 0), gets the handoff from setup immediately before the runner
	// starts, and writes it to the runner's standard input. The caller has set
	// job.Definition.
	//
	// If Start returns an error, no part of the job has run or will run. An instance may be
	// left; the caller finds it with List and removes it. An error that wraps [ErrJobFault]
	// is the job's own fault: the image does not exist, or is for another platform. After
	// an error that wraps [ErrConnectionLost] the job can be started again. Any other error
	// is a fault of the engine or the settings, and the next job may fail to start too.
	Start(ctx context.Context, job *Job, setup *Setup) (id string, err error)

	// Follow streams the runner's output from its beginning: lines of [Progress]. The
	// stream ends when the runner has ended, or with ctx.
	Follow(ctx context.Context, id string) (io.ReadCloser, error)

	// Wait blocks until the instance has ended. If the instance does not exist, Wait returns
	// an error that wraps [ErrNoInstance]. After the end of ctx it returns the error of ctx.
	// Any other error is temporary, such as an error while the engine restarts. The caller
	// retries; the executor does not.
	Wait(ctx context.Context, id string) (Exit, error)

	// Remove ends a running instance and removes it completely. The runner gets a SIGTERM
	// first, and a SIGKILL after grace. If the instance does not exist, Remove returns nil.
	Remove(ctx context.Context, id string, grace time.Duration) error

	// List returns the instances that the agent with this id has created or adopted
	// for any pool, running or ended. An executor that identifies the agent in
	// another way ignores the id.
	List(ctx context.Context, agent string) ([]Instance, error)

	// Sweep removes leftovers that List does not return, and returns their names. An agent
	// leaves them if it is killed while it creates or removes an instance. Sweep removes
	// nothing that a running agent may use. Specs are those of all pools of this process that
	// use the executor.
	Sweep(ctx context.Context, specs []InstanceSpec) (removed []string, err error)
}

// LeftoverAge is how long executors keep an ended instance of another agent. An agent removes
// its own instances within minutes, unless it has lost its agent id.
const LeftoverAge = 7 * 24 * time.Hour

// Adopter is an optional interface of an [Executor] whose instances may outlive the
// agent, and are then adopted by another agent that runs already or starts later.
type Adopter interface {
	// AdoptOrphans takes over instances of agents that no longer exist, and returns them,
	// running or ended. Exactly one of several agents gets an instance; more than one call
	// may return it to that agent. Mine reports whether to adopt for the pool with this
	// key. If AdoptOrphans returns an error, it also returns the instances that it has
	// adopted. Each pool calls it every 20 seconds, so it must be cheap if there is nothing
	// to adopt.
	AdoptOrphans(ctx context.Context, mine func(pool string) bool) ([]Instance, error)

	// LeavesJobs reports whether a pool that has to stop leaves its running jobs to
	// an agent that adopts them. Otherwise the pool stops them.
	LeavesJobs() bool

	// Replaced reports whether another agent may adopt the jobs of this agent, because this agent
	// counts as ended although its process runs. It is false if this is not known.
	Replaced(ctx context.Context) bool
}

// Explainer is an optional interface of an [Executor] whose instances can be ended by
// something else, such as a cluster that needs the node.
type Explainer interface {
	// EndReason blocks until something other than Remove ends the instance, and returns
	// the engine's reason. It returns an empty string if ctx ends first. It is safe for
	// concurrent use.
	EndReason(ctx context.Context, id string) string
}

// Interrupter is an optional interface of an [Executor] that can send a signal to a
// runner. With an executor that lacks it, the cancel grace period is part of the grace period
// of Remove, and the executor may use the period that was in force when the job started.
type Interrupter interface {
	// Interrupt sends the runner a SIGINT, and does not wait for the end of the runner. The
	// runner only interrupts its step; a later Remove stops the runner. Interrupt returns
	// [ErrNoInstance] if there is no instance, and nil if the runner has ended.
	Interrupt(ctx context.Context, id string) error
}

// Instance is one instance that an executor found by its labels.
type Instance struct {
	ID         string
	Pool       string // key of the pool that claimed the job
	PoolName   string
	Identity   Identity // of the pool, as it was at the claim
	Job        string
	WorkflowID string
	Kind       Kind // empty for a deployment
	Work       Work // as far as the labels contain it
	Generation uint64
	Running    bool
	Started    time.Time // zero if the runner was never started, and has no handoff
	Ended      time.Time // the creation if it was never started; zero while it runs, or if unknown
}

// Spec returns the spec of the instance's pool, as far as its labels contain it.
func (i Instance) Spec() PoolSpec {
	return PoolSpec{Name: i.PoolName, Identity: i.Identity, Leftover: true}
}

// Exit is how an instance ended.
type Exit struct {
	Code   int    // of the runner: see the Code constants
	Reason string // the engine's reason for an end that the runner did not cause, such as "out of memory"; may be empty
}

// Exit codes of the runner. After [CodeSucceeded], [CodeFailed] and [CodeGone] the agent has
// nothing to report. After any other code, and after a signal, it reports the outcome.
const (
	CodeSucceeded           = 0  // every step succeeded, and the service knows
	CodeFailed              = 10 // a step failed, and the service knows
	CodeGone                = 11 // the service no longer accepts reports of the job
	CodeFailedUnreported    = 12 // a step failed or could not begin, and the service could not be reached
	CodeUsage               = 13 // nothing has run: the runner has no handoff, or one of another release
	CodeSucceededUnreported = 14 // every step succeeded, and the last success could not be reported
	CodeUnknown             = -1 // the runner was never started, or its code is lost
)

// IsRunnerCode reports whether an exit code is one with which the runner exits after its
// job has started. An end with any other code needs a reason from the engine.
func IsRunnerCode(code int) bool {
	switch code {
	case CodeSucceeded, CodeFailed, CodeGone, CodeFailedUnreported, CodeSucceededUnreported:
		return true
	}
	return false
}

// SignalReason describes the signal that ended a process, given the exit code that a
// shell and a container engine report for it: 128 plus the signal's number. It returns ""
// for any other code.
func SignalReason(code int) string {
	signal := syscall.Signal(code - 128)
	switch {
	case signal == syscall.SIGKILL:
		return "killed"
	case signal == syscall.SIGTERM:
		return "terminated"
	case signal > 0 && signal < 65:
		return fmt.Sprintf("ended by signal %d (%v)", int(signal), signal)
	}
	return ""
}

// GoArchitecture returns Go's name of an architecture. The name may also be the one that the
// kernel uses, such as x86_64.
func GoArchitecture(name string) string {
	switch name {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return name
}

// Errors that an Executor's errors may wrap.
var (
	// ErrJobFault is wrapped by the error of a start that failed because of the job itself,
	// and not because of the agent's settings or the engine: see [JobFault].
	ErrJobFault = errors.New("cannot be started")
	// ErrConnectionLost is wrapped by the error of a start that lost the connection to the
	// engine. No part of the job has run or will run, because the runner does not have the
	// whole handoff.
	ErrConnectionLost = errors.New("lost the connection to the engine")
	// ErrNoInstance is returned for an id without an instance.
	ErrNoInstance = errors.New("no such instance")

	// ErrDenied matches an error if the engine has refused a request because of the agent's credentials
	// or rights. Its text is never printed.
	ErrDenied = errors.New("denied")
)

// JobFault is an error that the job causes. It wraps [ErrJobFault], but has only the text of
// the cause, which is for people and ends with the hint.
type JobFault struct{ Cause error }

// NewJobFault returns a JobFault whose cause is that of [fmt.Errorf].
func NewJobFault(format string, args ...any) error { return JobFault{fmt.Errorf(format, args...)} }

// Error returns the text of the cause.
func (f JobFault) Error() string { return f.Cause.Error() }

// Unwrap returns the cause and [ErrJobFault].
func (f JobFault) Unwrap() []error { return []error{f.Cause, ErrJobFault} }
