// Package reconcile makes the running pools match a configuration. It has a value for
// the desired state ([Desired]), a value for the observed state ([Observed]), a pure
// function that computes the difference ([Diff]), and a loop that applies it ([Loop]).
// It never knows an executor, a service or the format of a file: it gets pools and
// configurations from the functions that main passes.
//
// One edit, from the file event to the applied plan, goes through these files:
//
//  1. watch/watch.go: an event means that a file may have changed.
//  2. reload.go: [Reloader.Follow] receives it. [Reloader.Reload] reads the file, and
//     decides whether it is the next generation.
//  3. ../schema/load.go: Evaluate turns the bytes into a configuration, or problems.
//  4. desired.go: [Want] translates the configuration into the desired state.
//  5. loop.go: [Loop.Want] stores it and wakes [Loop.Run], whose turn observes, diffs
//     and acts.
//  6. plan.go: [Diff] returns the actions.
//  7. set.go: [Set] starts, tunes, drains and removes pools.
//  8. ../runtime/pool.go: Tune gives a running pool its new settings, and a pool that
//     starts runs.
//
// Three files explain a part of it: ../cmd/cmwa/run.go connects the watcher, the
// Reloader and the Loop; settle.go decides whether a file that is being written must
// wait; process.go prepares a changed listener or log.
//
// # Decisions
//
// The loop is level-triggered: each wake-up compares all of the desired state with all
// of the observed state. A pool that died is started again, with back-off, because it
// is desired.
//
// A turn of the loop does not block. "Starting" is a state of a member of the Set,
// whose goroutine builds the pool: a pool whose engine hangs for a minute delays no
// other one, and a newer desired state handles it by the actions that it has for any
// pool. A change of the process, which may have to resolve a host name, is prepared
// by one goroutine too, and closed if it is no longer desired when it is ready.
//
// A pool that replaces another one works before that one drains, so that a replacement
// that cannot start costs nothing. Nothing else waits for it: neither tuning, nor the
// start of other pools, nor the drain of a pool without a replacement. To hold back
// the whole plan for one failure would keep a removed pool claiming for as long as an
// engine is down, and would have a renamed pool poll twice with one token.
package reconcile
