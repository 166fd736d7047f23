// Package reconcile knows what is wanted, what is there, what to do next and
// how far we got: a value that says what should run ([Desired]), a value that
// says what runs ([Observed]), a pure function between them ([Diff]), and a
// loop that acts ([Loop]). It will never know an engine, a service or a file.
//
// The loop is level, not edge: it looks at what is, on every wake-up, whatever
// woke it. A pool that died comes back, with back-off, because it is wanted.
//
// Everything new is built before anything old is let go. A part that cannot be
// built holds back the drains and removals of its round, so that a pool whose
// replacement cannot start goes on working; it does not hold back its
// neighbours' starts and tunings, or one engine that is down at boot would keep
// every other pool of the file from work.
package reconcile
