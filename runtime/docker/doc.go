// Package docker knows how a job is a container: how it is made on a Docker
// engine, found by its labels, followed and removed. It will never know what a
// job is for, which service it came from, or how a step is run.
//
// # How the runner gets in
//
// The engine may be on another machine, or the agent in a container itself, so
// no path of the agent means anything to the engine. The runner therefore
// travels through the engine's API into a named volume, one for each digest of
// the program, which every job mounts read-only at [Options].RunnerDirectory. A
// container that is created and never started serves as the door: it mounts the
// volume for writing, takes the program, and is removed. Its name is fixed for
// each digest, so that the engine lets only one agent through at a time; the
// last file that it takes, the mark, says that all others are whole.
//
// The mark is looked for after the job's container was created and before it is
// started: a created container holds its volumes, so what was seen then cannot
// be pruned any more. Nothing is remembered from one job to the next, and
// nothing that was remembered can be wrong.
//
// With shared_volume_directory the runner lies in a folder for each job below
// it instead, which agent and engine must see under the same path.
//
// # What a crash leaves
//
// Folders and doors name the run of the agent that made them. An id belongs to one
// process at a time, so those of an earlier run of this agent are leftovers for
// certain; those of other agents become so with age, by the engine's clock. Sweep
// removes both.
//
// # What a container shows
//
// Labels name agent, pool, job, subject and generation, and are the only record
// of a job. No token is in labels, command or environment: the job's handover
// goes to the runner's standard input, over a connection attached before the
// start. The container's log holds what the runner says of its progress and no
// output of steps.
//
// # Users
//
// A job runs as whom the configuration names, or else the image. Nothing of the
// runner's way in needs root: the volume and the folder are for every user to
// read, and whatever the job must write lies where the runner finds a place for
// it. Only /mnt/pulumi is opened to other users before the start, since the path
// of the OIDC token's file is documented.
//
// # Before a job is claimed
//
// Check finds what would fail every job: no engine, no runner, no network, no
// folder. It asks the engine for one ping, and nothing that takes an engine more
// than a few milliseconds. It does not create a container to see whether one can
// be created: that would cost what a job costs, and needs an image. What only a
// container shows (a mount that the engine refuses, a limit that its machine does
// not have, a user that the image does not know) is left to the pool's back-off.
//
// # Limits
//
// Every call to the engine has a limit of its own, but for those that wait on
// purpose (the end of a job, its output). A pull is limited by the time in which
// nothing happens. What changes the engine's state is not cancelled half-way, as an
// engine may finish what nobody waits for any more; it outlives its caller by
// half a minute at most, so that an engine that hangs holds no shutdown.
package docker
