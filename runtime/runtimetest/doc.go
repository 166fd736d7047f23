// Package runtimetest knows what package runtime promises to and asks of
// others, in a form that tests can hold on to: one suite of stories that every
// Executor must pass ([Conform]), a strict job service in memory ([Service]), and
// fakes with state for both of runtime's interfaces ([Cloud], [Executor]).
// Between real programs, [Link] forwards TCP connections and breaks them, and
// [Proxy] forwards HTTP calls and injects faults.
//
// It will never know how a particular engine works, and no production code
// imports it.
//
// The two fakes hold no goroutine and no real clock, file or socket: all their
// waiting is done on channels and timers by whoever calls them, so that they
// live inside a testing/synctest bubble and take virtual time there.
package runtimetest
