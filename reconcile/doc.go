// Package reconcile makes the running pools match a configuration. It has a value for
// the desired state ([Desired]), a value for the observed state ([Observed]), a pure
// function that computes the difference ([Diff]), and a loop that applies it ([Loop]).
// Package schema parses the file. The package imports no executor, which runs jobs on an engine,
// and no client of a service: command cmwa passes functions to it that create pools and find
// configurations.
//
// One edit, from the file event to the applied plan, goes through these files:
//
//  1. ../cmd/cmwa/run.go: connects the watcher, the Reloader and the Loop.
//  2. watch/watch.go: the watcher sends a notification after an event.
//  3. reload.go: [Reloader.Follow] receives the notification. [Reloader.Reload] reads the
//     file, and decides whether it becomes the next accepted configuration. The number of
//     that configuration is the generation.
//  4. settle.go: the Reloader calls it before it accepts a configuration. A file that is still
//     being written must first be unchanged for settleTime.
//  5. ../schema/load.go: Evaluate turns the bytes into a configuration, or problems.
//  6. desired.go: [Want] translates the configuration into the desired state.
//  7. loop.go: [Loop.Want] stores the desired state and wakes [Loop.Run]. Each iteration
//     compares the desired state with the observed state, and starts the actions.
//  8. plan.go: [Diff] returns the actions.
//  9. set.go: [Set] starts, tunes, drains and removes pools.
//  10. ../runtime/pool/pool.go: Tune changes the settings of a running pool, and Run runs a
//     new one.
//
// process.go takes part only if the edit changes the listener, the log or the limit of all jobs:
// then the action is SetProcess.
//
// The reload class of a changed key decides the action:
//
//	live, next job  TunePool: [Set] calls Tune of the running pool. It uses live keys at once, and
//	                keys of the class next job for the jobs that it claims afterwards. A running job
//	                keeps those of its claim.
//	drain           StartPool for the pool with the new settings and, when that runs, DrainPool for
//	                the old one: it claims nothing more. RemovePool follows after its last job.
//	rebind          SetProcess: the new listener opens before the old one closes.
//	restart         none until the next start.
//
// # Decisions
//
// The loop is level-triggered: each iteration compares the whole desired state with the whole
// observed state. A failed pool is started again, with back-off, because it is desired.
//
// An iteration of the loop does not block. Each pool is built in its own goroutine and has
// the phase Starting until the build has ended. A slow engine therefore delays no other
// pool. [DrainPool] also cancels a build. A change of the process, which may have to resolve
// a host name, is also prepared in a goroutine. It is discarded if it is no longer desired
// when it is ready.
//
// The stop of the agent is a state of the same loop. In this state, an iteration only checks
// whether the time for running jobs has passed. The agent still follows its file, because an
// operator may want to change shutdown_timeout during a long drain. Other changes wait for
// the next start: with changed pools the agent would claim jobs again, and a change of the
// listener could fail.
//
// A pause by an operator is part of the desired state and not of the configuration. So the
// pause also applies to each later generation, and [Diff] compares it like other settings.
//
// If a pool replaces another one, the old pool drains only when the new pool runs. So a
// replacement that fails changes nothing. Other actions do not wait for a replacement:
// neither tuning, nor the start of other pools, nor the drain of a pool without a
// replacement. Otherwise removed pools would go on to claim jobs while one engine is down. A
// renamed pool, which is one removed and one added pool with the same token, would poll under
// both names.
package reconcile
