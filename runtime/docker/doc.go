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
// The agent checks the mark between the creation and the start of the job's container. The
// engine does not prune the volumes of an existing container, so a mark that is present after
// the creation stays. The agent stores nothing about volumes from one job to the next, so it
// cannot use outdated information.
//
// A copy into each created container would need no volume, no loader and no sweep. It costs 52 to 61
// ms a job (7.4 MB, overlay2, two cores), and the check of the mark costs 1.4 ms.
//
// With shared_volume_directory, the runner is instead in a directory below it, one for each
// job. The agent and the engine must see this directory under the same path.
//
// # Leftovers after a crash
//
// Each directory (in a file) and each loader container (in a label) records the agent and the
// process that created it. Only one process uses an agent id at a time (package agentid), so directories and loader
// containers of an earlier process of this agent are leftovers. Those of another agent are
// leftovers if they are old: loader containers by the engine's clock, directories by the agent's
// clock. Sweep removes the leftovers.
//
// # Data in a container
//
// Labels contain agent, pool, job, id of the deployment, and generation. The executor has no other record of
// a job. No token is in labels, command or environment: the handoff goes to the standard
// input of the runner, over a connection that is attached before the start. The log of
// the container has the runner's progress, and the output of steps only with job_log: both. It has a limit without a
// setting. The engine then removes the oldest lines; the agent needs only the last line of progress.
//
// # Users
//
// A job runs as the user of the configuration, or else of the image. The delivery of the
// runner does not need root: every user can read the volume and the directory, and the
// runner chooses writable directories for the job. Nothing in a container needs new privileges:
// sudo in a step does, so docker.allow_new_privileges exists. If the job does not run as root, one directory is
// made writable for all users before the start: /mnt/pulumi. The runner writes the OIDC token
// into this directory, because Pulumi documents the path, and the engine creates it for root.
//
// # Lost connections
//
// If a start loses the connection to the engine, its error wraps [runtime.ErrConnectionLost],
// so that the caller starts the job again: nothing has run before the handoff. If the
// connection breaks while the handoff is written, the exit code of the container shows how
// much of the handoff the runner has. A runner with a part of the handoff has run nothing. If
// the runner may have the whole handoff, the job counts as started.
//
// # Before a job is claimed
//
// Check finds problems that would fail every job: no engine, no runner, no network, no
// directory, no limit of the size. It sends the engine one ping, and no request that takes more than
// a few milliseconds. It does not create a container: that would cost as much as a job, and
// needs an image. Some problems appear only when a container is created or started: a mount
// that the engine rejects, a limit that its machine does not support, a user that the image
// does not have. After these problems, the pool backs off.
//
// # Limits
//
// Every call to the engine has a timeout, except those that wait for the end or the
// output of a job. A pull has a timeout for the time without progress. Calls that change
// the state of the engine are not cancelled immediately, because an engine may complete
// a cancelled call. They outlive their caller by at most half a minute, so that an engine
// without a response does not block a shutdown.
package docker
