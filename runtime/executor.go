package runtime

import (
	"context"
	"errors"
	"io"
	"time"
)

// Executor makes, finds, follows and removes the environments that jobs run in:
// containers, Pods or process groups. What it makes bears labels for agent,
// pool, job and generation, and these labels are the only record: List is
// recovery. Ids are the executor's own. All methods are safe for concurrent
// use, and safe to repeat.
type Executor interface {
	// Start makes the job's environment and starts the runner in it. It says what
	// it does to setup as it goes (the log of step 0), asks setup for the
	// handover at the last moment before the runner starts, and gives the runner
	// those bytes on its standard input. Job.Definition is filled in.
	//
	// An error that wraps [ErrJob] is the job's own failure: no such image, a
	// platform that cannot run here. Any other error may well fail the next job
	// too. After an error nothing is left that runs.
	Start(ctx context.Context, job *Job, setup *Setup) (id string, err error)

	// Follow streams what the runner says, from its beginning: lines of
	// [Progress]. The stream ends when the runner has ended, or with ctx.
	Follow(ctx context.Context, id string) (io.ReadCloser, error)

	// Wait blocks until the environment has ended, or ctx. An environment that is
	// not there any more has ended: [ErrNoEnvironment]. Any other error is
	// temporary, such as that of an engine that is restarted: the caller calls Wait
	// again after a while, and the executor itself does not retry.
	Wait(ctx context.Context, id string) (Exit, error)

	// Remove ends what runs, giving it up to grace after the first request (a
	// TERM), and then removes every trace. Removing what is not there is success.
	Remove(ctx context.Context, id string, grace time.Duration) error

	// List returns the instances that the agent with this id has made or adopted
	// for any pool, running or ended. An executor that identifies the agent in
	// another way ignores the id.
	List(ctx context.Context, agent string) ([]Found, error)
}

// Sweeper is an optional interface of an [Executor] that can find what List does
// not return: what an agent left behind that died while it made or removed an
// instance.
type Sweeper interface {
	// Sweep removes such leftovers, and returns their names. It removes nothing
	// that a living agent may be using. Places are those of all pools of this
	// process that use the executor. It is safe for concurrent use.
	Sweep(ctx context.Context, places []Place) (removed []string, err error)
}

// Adopter is an optional interface of an [Executor] whose instances may outlive the
// agent, and are then adopted by another agent that runs already or starts later.
type Adopter interface {
	// AdoptOrphans takes over instances of agents that no longer exist, and returns
	// them, running or ended. Exactly one of several agents gets an instance; that
	// one may get it from more than one call. Mine reports whether the pool with this
	// key is one to adopt for. With an error it returns what it has adopted all the
	// same. It is called every 20 seconds by each pool, so it must be cheap when there
	// is nothing to adopt.
	AdoptOrphans(ctx context.Context, mine func(pool string) bool) ([]Found, error)

	// LeavesJobs reports whether a pool that has to stop leaves its running jobs to
	// an agent that adopts them. Otherwise it stops them.
	LeavesJobs() bool
}

// Explainer is an optional interface of an [Executor] whose instances can be ended by
// others, such as a cluster that needs the node.
type Explainer interface {
	// Ending blocks until something other than Remove ends the instance, and returns
	// why, as the engine puts it. It returns nothing when ctx ends first. It is safe for
	// concurrent use.
	Ending(ctx context.Context, id string) string
}

// Found is one instance that an executor found by its labels.
type Found struct {
	ID         string
	Pool       string   // key of the pool that claimed the job
	PoolName   string   //
	Identity   Identity // of the pool, as it was at the claim
	Job        string
	Subject    string
	Generation uint64
	Running    bool
	Started    time.Time
	Ended      time.Time // zero while it runs, or when it is not known
}

// Spec returns what the labels tell of the instance's pool.
func (f Found) Spec() PoolSpec {
	return PoolSpec{Name: f.PoolName, Identity: f.Identity, Leftover: true}
}

// Exit is how an environment ended.
type Exit struct {
	Code   int    // of the runner: see the Code constants
	Reason string // the engine's own words for an end that was not the runner's choice, such as "out of memory"; may be empty
}

// Exit codes of the runner. Any other code, and any death by signal, means that
// the runner could not tell how the job ended.
const (
	CodeSucceeded = 0  // every step succeeded, and the service knows
	CodeFailed    = 10 // a step failed, and the service knows
	CodeGone      = 11 // the service wanted to hear no more
	CodeUsage     = 13 // the runner was started wrongly: no handover, or one of another release

	CodeFailedUnreported    = 12 // a step failed or could not begin, and the service could not be reached
	CodeSucceededUnreported = 14 // every step succeeded, and the last success could not be reported
)

// ChosenCode reports whether an exit code is one with which the runner ends after its
// job has begun. An end with any other code needs a reason from the engine.
func ChosenCode(code int) bool {
	switch code {
	case CodeSucceeded, CodeFailed, CodeGone, CodeFailedUnreported, CodeSucceededUnreported:
		return true
	}
	return false
}

// Sentinels that an Executor's errors may wrap.
var (
	// ErrJob says that a start failed for a reason of the job's own, and not for
	// one of the agent's settings or of the engine.
	ErrJob = errors.New("cannot be started")
	// ErrNoEnvironment says that there is nothing by that id.
	ErrNoEnvironment = errors.New("no such environment")
)
