// Package reconcile knows what is wanted, what is there, what to do next and
// how far we got: a value that says what should run ([Desired]), a value that
// says what runs ([Observed]), a pure function between them ([Diff]), and a
// loop that acts ([Loop]). It will never know an engine, a service or a file.
//
// The loop is level, not edge: it looks at what is, on every wake-up, whatever
// woke it. A pool that died comes back, with back-off, because it is wanted.
//
// A pool that takes the place of another works before that one is let go, so that
// a replacement that cannot start costs nothing. Nothing else waits for it: neither
// tunings, nor other pools' starts, nor the end of a pool that nothing takes the
// place of. To hold back all of a round for one failure would keep a removed pool
// claiming for as long as any engine is down, and a renamed one asking twice under
// one token.
package reconcile
