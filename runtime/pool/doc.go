// Package pool runs the jobs of a pool: poll, claim, start, watch, report, remove, and poll
// again; and it recovers the jobs of an agent that was killed. It does not depend on a particular
// service or engine, and does not read a configuration file.
//
// Every goroutine is started by a [Pool] or by a job, which waits for its end:
//
//   - of a pool: its loop, one for each poll of a source of jobs (deployments; leased work, see
//     below), the check of the executor, sweeps, the search for jobs of other agents, and one for each
//     job. Between two polls, an idle pool has only its loop, whose stack is small: an agent may have a
//     thousand pools;
//   - of a job: heartbeats until the runner starts, status polls, progress, and the wait for the
//     end of its instance, which is a container, a Pod or a process.
//
// There are two kinds of failure. The failure of a job is reported to the service, and the
// pool continues. The failure of a pool ends [Pool.Run], and reconcile starts the pool
// again.
//
// # How one job flows
//
//	wait for the poll time -> poll, which claims one job or none -> record (claimed) -> get definition
//	-> start: create the instance, record (handed off), send the handoff
//	-> read progress and wait for the end, concurrently
//	-> report if the runner could not -> record (reported) -> remove instance and record
//
// The definition has the steps of the job. The handoff is what the agent writes to the standard
// input of the runner: the definition and the tokens. A runner that has not received all of it
// exits without running anything. Step 0 is the agent's own step: its log has everything until
// the runner starts. The runner reports the other steps and sends the heartbeats. The status of
// the job is polled from the claim until the end. Meanwhile the pool goes on to poll for jobs
// while it has a free slot; when a job ends, it polls without waiting for the polling interval.
//
// These files take part, from the poll to the removal of the instance. They are in the
// order of their first use; some are used more than once.
//
//  1. source.go: the loop waits until the next poll is allowed, the executor can start
//     jobs, and the pool has a slot. Then it starts the poll.
//  2. claim.go: stores the time of the next poll, and runs the job; recording.go
//     records the claim in the journal, and later the progress of the job.
//  3. ../../cloud/client.go: the client of the service.
//  4. ../../cloud/call.go: one HTTP request, its response, its errors.
//  5. ../../cloud/schedule.go: computes the time of the next poll from the result of this poll.
//  6. jobrun.go: one job from its claim to its removal, and its goroutines.
//  7. start.go: heartbeats and the definition; ../setup.go: the log of step 0 and the handoff.
//  8. ../../cloud/jobs.go: Definition and Report; a Report without content is a heartbeat.
//  9. ../docker/start.go: the actions of a start, in order; after an error they are undone.
//  10. ../docker/image.go: finds the image, or pulls it.
//  11. ../docker/container.go: creates the container with its labels and its directory and, when
//     it has started, writes the handoff to its standard input.
//  12. ../docker/runner.go: finds the runner program and, between the creation and the start,
//     copies it into the volume that the container mounts.
//  13. progress.go: reads the runner's progress from its output.
//  14. ending.go: logs how the job ended, and reports it if the runner could not.
//  15. sweep.go: removeEnded removes the instance; if that fails, a later sweep does.
//
// You can skip the following files, because each is used through one call: slots.go (the limit of
// all pools), check.go (the check of the executor before a poll), starts.go (jobs that fail to
// start), outcome.go (the outcome of a job, for its metrics), ../../cloud/token.go (the pool's
// token), ../../cloud/status.go (the status poll), and ../docker/check.go, ../docker/follow.go,
// ../docker/wait.go and ../docker/remove.go. stop.go stops a job that is cancelled or has to end.
//
// # The journal
//
// A [runtime.Journal] has a record of each claimed job, so that no job is lost or runs twice if the
// agent is killed. recording.go writes it: the record is stored before anything else is done with
// the claim, and its stage is changed before the handoff is sent. If the stage cannot be changed,
// the record is removed, because a record with the stage claimed would start the job a second
// time. If the removal fails too, the job does not start. If the journal cannot store a record, the
// job runs without one: it is lost only if the agent is also killed before the handoff.
//
// At its start, before the first claim, a pool lists its records and its instances, and recovers
// the jobs (adopt.go joins the lists, recover.go continues each job in a run of its own):
//
//	stage       instance      the pool
//	claimed     any or none   removes the instance, and starts the job again if the claim is younger
//	                          than heartbeatTimeout (nine minutes), the pool is still configured, and
//	                          the service accepts a heartbeat or hands the job out again; otherwise
//	                          it reports step 0 as failed, unless the job has ended at the service
//	handed off  any           resumes the job, and reports its true outcome; if the runner was never
//	                          started, or exited without a handoff, the job is treated as claimed
//	handed off  none          reports the recorded step as failed (lost.go), unless the job has
//	                          ended at the service
//	reported    any or none   removes the instance, and reports nothing
//	no record   running       resumes the job: its runner reports by itself. It takes no slot if agents
//	                          share the journal: then another user may have created the instance
//	no record   ended         removes the instance
//
// If the instances or the records cannot be listed, it is not known which jobs run. The pool
// then fails and starts no job. If the pool stops during a recovery, the job is left to the next
// start. TestRecoveryProperty (crash_test.go) kills an agent at random calls.
//
// # Adoption
//
// To recover is to continue a job of an earlier run of the same agent. To adopt is to take over a
// job of another agent that no longer exists. If the executor is a [runtime.Adopter], a pool adopts
// at its start and every 20 seconds. An adopted job goes on as a recovered one. An agent whose Pod was
// deleted with kubectl delete --force may still run. It does not report a recovered job as failed, because
// another agent may have started the job again (isReplaced in lost.go).
//
// # Leased work
//
// Scans and policy evaluations are leased, concurrently with the deployments and with a limit
// of their own: lease.go polls for them, and renews the lease of a job until its instance is
// removed. Everything else is as for a deployment.
//
//  1. Leased work must have ended when its lease expires, because another agent then gets
//     the work. If the lease was not renewed when two thirds of it are over, the work is
//     stopped. The grace period between SIGTERM and SIGKILL is at most half of the time that
//     is then left.
//  2. One goroutine makes all calls about a lease, so that no other work delays a renewal.
//     The goroutine ends after the instance.
//  3. Leased work is never adopted. Instances have a label with the kind of leased work. A
//     pool removes the leased instances of an earlier run, and leases nothing before they
//     are removed.
//  4. Leased work has no record in the journal: a lease without a renewal expires by itself.
//
// A third of a lease is enough time for an engine to stop the work, and for a renewal whose first
// two calls are lost. The clock of the machine must run while the agent does: after a machine
// was suspended, work may run until the service has refused the next renewal or report.
//
// # Decisions
//
// The client of the service ([runtime.Cloud]) computes the schedule of polls, because only the
// client knows retries, Retry-After and circuit breaker. A pool stores the time of the next poll
// that the client returned. It polls earlier only if this time results from the polling interval
// alone: when a job has ended or the executor can start jobs again.
//
// Reconnection to an engine is here (retryEngine), and executors do not retry: an engine
// that restarts fails Wait, Follow and Remove in the same way, and one place decides how
// long to wait and what to log. A start that loses the connection is tried again as long as
// the runner cannot have the whole handoff ([runtime.ErrConnectionLost]). There is one retry in an
// executor: for a few seconds it finds out how much of the handoff the runner has.
//
// When a pool must stop, it stops its jobs with a grace period, because the instances of an
// agent that is not started again would run forever. If another agent can adopt them
// ([runtime.Adopter].LeavesJobs), it leaves them running, except jobs that are cancelled or over
// their time limit, or whose runner hangs.
//
// A pool is healthy if its loop turns on time and its polls end on time: [runtime.PoolState.Due] is
// the first of these times. The pool records no other progress for health.
package pool
