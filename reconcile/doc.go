// Package reconcile makes the running pools match a configuration. It has a value for
// the desired state ([Desired]), a value for the observed state ([Observed]), a pure
// function that computes the difference ([Diff]), and a loop that applies it ([Loop]).
// It does not depend on an executor, a service or the format of a file: it gets pools and
// configurations from the functions that main passes.
//
// One edit, from the file event to the applied plan, goes through these files:
//
//  1. watch/watch.go: the watcher sends a notification after an event.
//  2. reload.go: [Reloader.Follow] receives the notification. [Reloader.Reload] reads the
//     file, and decides whether it becomes the next accepted configuration. The number of
//     that configuration is the generation.
//  3. ../schema/load.go: Evaluate turns the bytes into a configuration, or problems.
//  4. desired.go: [Want] translates the configuration into the desired state.
//  5. loop.go: [Loop.Want] stores it and wakes [Loop.Run]. Each iteration compares and
//     acts.
//  6. plan.go: [Diff] returns the actions.
//  7. set.go: [Set] starts, tunes, drains and removes pools.
//  8. ../runtime/pool.go: Tune changes the settings of a running pool, and Run runs a new
//     one.
//
// Three files explain a part of it: ../cmd/cmwa/run.go connects the watcher, the
// Reloader and the Loop; settle.go decides whether a reload must wait for a
// file that is still being written; process.go prepares a changed listener or log.
//
// # Decisions
//
// The loop is level-triggered: each iteration compares the whole desired state with the whole
// observed state. A failed pool is started again, with back-off, because it is desired.
//
// An iteration of the loop does not block. Each pool is built in its own goroutine and has
// the phase Starting until then. A slow engine therefore delays no other pool. [DrainPool]
// also cancels a build. A change of the process, which may have to resolve a host name, is
// prepared in a goroutine too, and discarded if it is no longer desired when it is ready.
//
// The stop of the agent is a state of the same loop: an iteration then only checks whether
// running jobs have no more time. The file is still followed, because an operator who sees a long
// drain changes shutdown_timeout. Other changes wait for the next start. A change of pools
// would claim jobs again, and one of the listener could fail.
//
// A pause by an operator is part of the desired state and not of the configuration, so it
// applies to each later generation, and [Diff] needs no special case for it.
//
// A replacement must run before the old pool drains, so that a failed replacement changes
// nothing. Other actions do not wait for it: neither tuning, nor the start of other pools,
// nor the drain of a pool without a replacement. Otherwise one engine that is down would
// stop removed pools from draining, and a renamed pool would poll twice with one token.
package reconcile
