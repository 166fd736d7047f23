// Package runtime knows a job's life cycle and a pool's loop: wait, claim, start,
// follow, report, remove, and poll again. It declares what it asks of a service
// ([Cloud]) and of a place to run ([Executor]); it will never know which
// service or which engine answers, and never reads a configuration file.
//
// A [Pool] owns its loop and its jobs; a job owns three children (its output,
// its status check, the wait for its end). Nothing else starts a goroutine here.
//
// Two failures are kept apart. A job's failure is reported to the service and the
// pool goes on. A pool's failure ends [Pool.Run], and reconcile starts the pool
// again.
//
// # How one job flows
//
//	wait -> claim -> definition -> start -> follow | status check | wait -> report -> remove -> poll again at once
//
// From the poll to the started container and the report of its set-up, in this order:
//
//  1. pool.go: the loop waits until the next poll is allowed, the executor can start
//     jobs, and the pool has a slot.
//  2. slots.go: a slot of the limit that all pools share.
//  3. claim.go: polls, keeps when the next poll is allowed, and begins the job.
//  4. cloud/client.go: Claim makes the request; Definition and Report follow later.
//  5. cloud/token.go: the token of the pool: as configured, or in exchange for an OIDC token.
//  6. cloud/call.go: one HTTP request, its answer, its errors.
//  7. cloud/schedule.go: computes the time of the next poll from the outcome.
//  8. life.go: one job from its claim to its removal, and its three children.
//  9. start.go: heartbeats, the definition, the log of step 0, and the handover.
//  10. docker/start.go: the acts of a start, in order; an error undoes them.
//  11. docker/image.go: finds the image, or pulls it.
//  12. docker/container.go: creates the container with its labels and its folder, and
//     writes the handover to its standard input.
//  13. docker/runner.go: finds the runner program and puts it into the volume that
//     the container mounts.
//  14. cloud/jobs.go: the calls about a job, which carry the reports of step 0.
//
// The end of a job is in life.go (wait, stop), progress.go (how far the runner got),
// ending.go (the report in the runner's place), and the executor's Wait and Remove.
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
// A pool is healthy while its loop turns when it must: [PoolState.Due] is that time.
// There are no other signs of progress to keep.
package runtime
