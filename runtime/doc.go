// Package runtime runs the jobs of a pool: poll, claim, start, watch, report, remove, and
// poll again. It declares its interfaces to a service ([Cloud]) and to an engine
// ([Executor]). It does not depend on a particular service or engine, and does not read a
// configuration file.
//
// A pool or a job starts each goroutine and waits for it. Those of a [Pool] are its two loops,
// checks, sweeps, jobs, and the search for orphaned instances. Those of a job are:
// heartbeats until the runner starts, progress, status polls, the wait for its end, and
// removal.
//
// There are two kinds of failure. The failure of a job is reported to the service, and the
// pool continues. The failure of a pool ends [Pool.Run], and reconcile starts the pool
// again.
//
// # How one job flows
//
//	wait for the poll time -> claim -> record -> get definition -> start
//	-> (read progress, poll status, wait for exit: concurrently)
//	-> report -> remove -> remove the record -> poll again at once
//
// From the poll to the report of its outcome, these files take part. The order is that of
// their first use; some are used more than once.
//
//  1. pool.go: the loop waits until the next poll is allowed, the executor can start
//     jobs, and the pool has a slot.
//  2. claim.go: polls, keeps the time of the next poll, and runs the job; recording.go
//     records the claim in the journal, and later how far the job has come.
//  3. cloud/client.go: Claim makes the request; Definition and Report follow later.
//  4. cloud/call.go: one HTTP request, its answer, its errors.
//  5. cloud/schedule.go: computes the time of the next poll from the result.
//  6. jobrun.go: one job from its claim to its removal, and its goroutines.
//  7. start.go: heartbeats and the definition; setup.go: the log of step 0 and the handoff.
//  8. cloud/jobs.go: the calls about a job: its definition, heartbeats and reports.
//  9. docker/start.go: the actions of a start, in order; an error undoes them.
//  10. docker/image.go: finds the image, or pulls it.
//  11. docker/runner.go: finds the runner program and, when the container exists, copies
//     it into the volume that the container mounts.
//  12. docker/container.go: creates the container with its labels and its folder and, when
//     it has started, writes the handoff to its standard input.
//  13. progress.go: reads the runner's progress from its output.
//  14. ending.go: logs how the job ended, and reports it if the runner could not.
//
// # The journal
//
// A [Journal] has a record of each claimed job, so that a job is never lost and never runs
// twice if the agent is killed. recording.go writes it: the record is stored before anything
// else is done with the claim, and its stage is changed before the handoff is sent. If the
// stage cannot be written, the record is removed, and if that fails, too, the job does not
// start. A job whose record cannot be stored runs without one.
//
// At its start a pool recovers the jobs with a record, before the first claim (recover.go):
//
//	stage       instance      the pool
//	claimed     any or none   removes it, and starts the job again if the claim is less than nine
//	                          minutes old and the service accepts a heartbeat; otherwise it
//	                          reports step 0 as failed
//	handed off  any           adopts the job, and reports its true outcome; a runner that ended
//	                          without a handoff is replaced as if the job were only claimed
//	handed off  none          reports the recorded step as failed (lost.go), unless the service
//	                          knows that the job is over
//	reported    any or none   removes it, and reports nothing
//
// If the instances or the records cannot be listed, the pool fails and starts no job: it is
// not known what runs. TestRecoveryProperty kills an agent at random calls.
//
// A pool also runs jobs that it has not claimed (adopt.go): at its start those of an
// earlier run of the agent, with what the journal has of them (recover.go), and at
// intervals those of agents that no longer exist, if the executor can adopt them
// ([Adopter]).
//
// Each of these files is used through one call. You can skip them: runtime/slots.go (the
// limit of all pools), runtime/check.go (the executor before a poll), runtime/backoff.go
// (jobs that fail to start), runtime/sweep.go (instances that have ended),
// runtime/recorder.go (counts of all of this), cloud/token.go (the pool's token),
// cloud/status.go (the status poll), and docker/check.go, docker/follow.go, docker/wait.go
// and docker/remove.go.
//
// Scans and policy evaluations are leased, beside the deployments and with a limit of their
// own: lease.go polls for them, and renews the lease of a job until its instance is gone. The
// rest of their flow is that of a deployment.
//
// # Leased work
//
//  1. The work of a lease has ended when the lease expires, because another agent gets it
//     then: without a renewal it is stopped when two thirds of the lease are over, and gets
//     half of the time that is left between SIGTERM and SIGKILL.
//  2. Only the goroutine that renews a lease makes its calls, so that nothing delays it. It
//     ends after the instance.
//  3. It is never adopted. Instances have a label with the kind of leased work. A pool
//     removes those of an earlier run, and leases nothing before they are gone.
//  4. It has no record in the journal: a lease without a renewal expires by itself.
//
// A third of a lease is long for an engine and for two lost calls. The clock of the machine
// must run while the agent does: after a machine was suspended, work may run until the
// service has refused the next renewal or report.
//
// # Decisions
//
// The Cloud owns the schedule of polls, because only the Cloud knows retries, Retry-After
// and circuit breaker. A pool keeps the one time that it was given, and may only cut the
// polling interval short: when a job has ended or the executor can start jobs again.
//
// Reconnection to an engine is here (retryEngine), and executors do not retry: an engine
// that restarts fails Wait, Follow and Remove in the same way, and one place decides how
// long to wait and what to log. A start that loses the connection is tried again as long as
// the runner cannot have the whole handoff ([ErrConnectionLost]). The only retry in an
// executor finds out for a few seconds how much of it the runner has.
//
// When a pool must stop, it stops its jobs with a grace period, because the instances of an
// agent that is not started again would run forever. If another agent can adopt them
// ([Adopter].LeavesJobs), it leaves them running, except jobs that are cancelled or over
// their time limit, or whose runner hangs.
//
// A pool is healthy while its loop turns on time: [PoolState.Due] is that time. The pool
// records no other progress for health.
package runtime
