// Package runtimetest provides test helpers for the interfaces of package runtime: a
// suite of tests that every Executor must pass ([Conform]), a strict job service in memory
// ([Service]), fakes with state for the interfaces ([Cloud], [Executor], [Journal]), and a
// [Metrics]. Between real programs, [Link] forwards TCP connections and breaks them, and
// [Proxy] forwards HTTP calls and injects faults.
//
// The package does not depend on a particular engine, and no production code imports it.
//
// The fakes have no goroutine and no real clock, file or socket: their callers block
// on channels and timers, so that the fakes work in a testing/synctest bubble and use its
// virtual time.
package runtimetest
