package pool

import (
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Times of polls.
const (
	claimLimit   = 10 * time.Minute // of one poll for deployments; only for a Cloud without a timeout
	acquireLimit = 2 * time.Minute  // of one poll for leased work

	// slotGrace is the time after which a poll without a response shares its slot with a pool in the
	// queue. A service that works answers sooner. Without sharing, a service that does not answer
	// would block all other pools until the poll times out.
	slotGrace = 2 * time.Second

	checkValid   = 5 * time.Second  // a check without a problem is valid for this long
	checkRetry   = time.Second      // between two checks, after a check that found a problem
	checkTimeout = 10 * time.Second // for one check
)

// Times of a job's start.
const (
	definitionLimit = 30 * time.Minute // for the definition, even while heartbeats are accepted

	// heartbeatTimeout is the time without an accepted heartbeat after which a start fails, and the
	// age of a claim up to which its job may be started again. Both end one minute before the service
	// would declare the job failed.
	heartbeatTimeout = runtime.HeartbeatLimit - time.Minute

	// startRetryLimit limits the retries of a start. It is measured from the first loss of the
	// connection to the engine. A restart of an engine takes some seconds.
	startRetryLimit = 2 * time.Minute
)

// Times of a job's end.
const (
	failGrace        = 30 * time.Second // for the runner to exit after it reported a failure
	completeGrace    = time.Minute      // for the runner to exit after it reported the last success
	timeLimitGrace   = 5 * time.Minute  // after the job's own time limit, which the runner enforces
	finalReportLimit = 5 * time.Minute  // for the last report of a job
	removeLimit      = 2 * time.Minute  // for removing an instance, in addition to its grace period

	reasonWait  = 3 * time.Second // how long a runner waits after a signal for the agent to log the reason
	reasonLimit = 2 * time.Second // for the agent to get the reason and add it to the log

	exitGrace   = time.Second      // maximum time from the end of the progress stream to the exit of the instance
	streamGrace = 5 * time.Second  // maximum time from the exit of the instance to the end of the progress stream
	waitGrace   = 10 * time.Second // maximum time from the removal of an instance to the result of Wait

	defaultCancelGrace = 5 * time.Minute  // cancel grace period of a pool that is not configured
	forcedGrace        = 30 * time.Second // longest cancel grace period after a forced stop
	interruptTimeout   = 10 * time.Second // of one request to interrupt a runner

	// shutdownLimit is the limit of all work on jobs after the context of Run has ended and the
	// cancel grace period is over: ending the jobs, the last reports, and the removal of instances.
	shutdownLimit = 2 * time.Minute
)

// Times of leases.
const (
	// A lease is renewed when a third of its time is over. With two thirds over and no renewal, the
	// work is stopped, so that it has ended when the lease expires.
	leaseRenewPart = 3
	leaseAttempts  = 3 // number of attempts to renew for which there is time, even if each times out
	leaseRetryMin  = 50 * time.Millisecond
	leaseCheck     = time.Second // between two checks of the clocks: see lease.left

	completeLimit = time.Minute      // for completing a lease whose work has ended
	giveBackLimit = 15 * time.Second // for completing one whose work has not started
	leftoverGrace = 5 * time.Second  // between SIGTERM and SIGKILL of leased work of an earlier run
)

// Times of recovery.
const (
	// maxRestarts is how often a job is started again if each start ends the agent before an instance is
	// created. If the definition of the job is the reason, for example for lack of memory, each later run
	// of the agent would end in the same way until the claim is too old. A machine with other problems
	// may end its agent several times in a row.
	maxRestarts = 10

	journalLimit = 30 * time.Second // of a change in a Journal, with the removal of the record if it fails

	// clockSkew is how far in the future the recorded time of a claim may be: the clock of an earlier
	// run may have been ahead.
	clockSkew = time.Minute

	// confirmLimit is the timeout of a request for the status or the definition of a recovered job.
	// It is longer than the half minute after which a client accepts a refusal.
	confirmLimit  = 45 * time.Second
	statusLimit   = time.Minute     // for finding out whether a recovered job is over at the service
	findStepLimit = 5 * time.Second // of each report with which findStep tries a step

	adoptInterval = 20 * time.Second // between two attempts to adopt orphaned instances
	adoptLimit    = time.Minute      // for one attempt to adopt instances and records
	listLimit     = time.Minute      // for one call of List
	sweepGrace    = time.Minute      // after the end of an instance, in which its owner may still remove it
	sweepInterval = 10 * time.Minute // between two sweeps
)

// Delays of retries.
var (
	engineBackoff   = runtime.Backoff{First: time.Second, Max: 30 * time.Second}    // an engine may be restarted
	startBackoff    = runtime.Backoff{First: 5 * time.Second, Max: 5 * time.Minute} // after failed starts of jobs
	leftoverBackoff = runtime.Backoff{First: time.Second, Max: time.Minute}         // of the removal of leased work
)
