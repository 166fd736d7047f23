// Package docker runs each job as a container of a Docker engine. It creates containers,
// finds them by their labels, follows and removes them. It does not depend on the purpose of
// a job, on its service, or on how steps are run.
//
// # Delivery of the runner
//
// The engine may be on another machine, or the agent in a container, so the engine
// cannot use a path of the agent. The runner is therefore copied through the API of the
// engine into a named volume, one for each digest of the program. Every job mounts the
// volume read-only at [Options].RunnerDirectory. A loader container fills the volume: it
// mounts the volume for writing, is never started, and is removed after the copy. Its
// name depends only on the digest, so the engine admits one loader at a time. The last
// file of the copy, the mark, means that all other files are complete.
//
// The agent checks the mark after it has created the job's container and before it
// starts it. From its creation on, the engine does not prune the volumes of a container,
// so a mark that exists then stays. The agent stores nothing about volumes from one job to
// the next, so it cannot use outdated information.
//
// With shared_volume_directory, the runner is instead in a folder below it, one for each
// job. The agent and the engine must see this folder under the same path.
//
// # Leftovers after a crash
//
// Each folder (in a file) and each loader container (in a label) records the agent and the
// process that created it. Only one process uses an agent id at a time, so what an earlier
// process of this agent created is a leftover. What another agent created is a leftover
// when it is old: a loader container by the engine's clock, a folder by the agent's. Sweep
// removes both.
//
// # Data in a container
//
// Labels contain agent, pool, job, subject and generation, and are the only record of a
// job. No token is in labels, command or environment: the handoff goes to the standard
// input of the runner, over a connection that is attached before the start. The log of
// the container has the runner's progress and no output of steps.
//
// # Users
//
// A job runs as the user of the configuration, or else of the image. The delivery of the
// runner does not need root: every user can read the volume and the folder, and the
// runner chooses writable folders for the job. One folder is made writable for all users
// before the start: /mnt/pulumi, into which the runner writes the OIDC token, because
// Pulumi documents that path and the engine creates the folder for root.
//
// # Lost connections
//
// A start that loses the connection to the engine wraps [runtime.ErrConnectionLost], so that
// the caller starts the job again: nothing has run before the handoff. If the connection
// breaks while the handoff is written, the exit code of the container tells how much of it
// the runner has. A runner with a part of it has run nothing. A runner that may have all of
// it is a running job.
//
// # Before a job is claimed
//
// Check finds problems that would fail every job: no engine, no runner, no network, no
// folder. It sends the engine one ping, and no request that takes more than a few
// milliseconds. It does not create a container: that would cost as much as a job, and
// needs an image. Problems that only a container shows (a mount that the engine rejects,
// a limit that its machine does not support, a user that the image does not have) are
// left to the back-off of the pool.
//
// # Limits
//
// Every call to the engine has a timeout, except those that wait for the end or the
// output of a job. A pull has a timeout for the time without progress. Calls that change
// the state of the engine are not cancelled immediately, because an engine may complete
// a cancelled call. They outlive their caller by at most half a minute, so that an engine
// without a response does not block a shutdown.
package docker
