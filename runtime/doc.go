// Package runtime knows a job's life cycle and a pool's loop: wait, claim, start,
// follow, report, remove, and poll again. It declares what it asks of a service
// ([Cloud]) and of a place to run ([Executor]); it will never know which
// service or which engine answers, and never reads a configuration file.
//
// A [Pool] owns its loop, the checks and sweeps beside it, and its jobs; a job owns
// its children (the heartbeats of its start, its output, its status check, the wait
// for its end). Nothing else starts a goroutine here.
//
// Two failures are kept apart. A job's failure is reported to the service and the
// pool goes on. A pool's failure ends [Pool.Run], and reconcile starts the pool
// again.
//
// # How one job flows
//
//	wait -> claim -> definition -> start -> follow | status check | wait -> report -> remove -> poll again at once
//
// From the poll to the report of its end, a job is in these files:
//
//  1. pool.go: the loop waits until the next poll is allowed, the executor can start
//     jobs, and the pool has a slot.
//  2. claim.go: polls, keeps when the next poll is allowed, and begins the job.
//  3. cloud/client.go: Claim makes the request; Definition and Report follow later.
//  4. cloud/call.go: one HTTP request, its answer, its errors.
//  5. cloud/schedule.go: computes the time of the next poll from the outcome.
//  6. life.go: one job from its claim to its removal, and its children.
//  7. start.go: heartbeats, the definition, the log of step 0, and the handover.
//  8. docker/start.go: the acts of a start, in order; an error undoes them.
//  9. docker/image.go: finds the image, or pulls it.
//  10. docker/container.go: creates the container with its labels and its folder, and
//     writes the handover to its standard input.
//  11. docker/runner.go: finds the runner program and puts it into the volume that
//     the container mounts.
//  12. cloud/jobs.go: the calls about a job: its definition, heartbeats and reports.
//  13. progress.go: reads from the runner's output how far it got.
//  14. ending.go: logs how the job ended, and reports it in the runner's place if the
//     runner could not.
//
// A pool also attends jobs that it has not claimed (sweep.go): at its start those of
// an earlier run of the agent, and at intervals those of agents that no longer exist,
// if the executor can adopt them ([Adopter]).
//
// These files are behind one call each, and are not needed to follow the path:
// slots.go (the limit of all pools), check.go (the executor before a poll), backoff.go
// (jobs that fail to start), cloud/token.go (the pool's token), cloud/wanted.go (the
// status check), and check.go, follow.go, wait.go and remove.go of the executor.
//
// # Decisions
//
// The Cloud owns the schedule of polls, since it alone knows retries, Retry-After and
// circuit breaker. A pool keeps the one time that it was given, and may only cut the
// polling interval short: when a job has ended or the executor can start jobs again.
//
// Reconnection to an engine is here (retryEngine), and executors do not retry: an
// engine that is restarted fails Wait, Follow and Remove in the same way, and one
// place decides how long to wait and what to log.
//
// A pool that has to stop ends its jobs in order, because what is left behind by an
// agent that nobody starts again would run for ever. Where another agent adopts them
// ([Adopter].LeavesJobs), it leaves them, unless a job must end for a reason of its own.
//
// A pool is healthy while its loop turns when it must: [PoolState.Due] is that time.
// There are no other signs of progress to keep.
package runtime
