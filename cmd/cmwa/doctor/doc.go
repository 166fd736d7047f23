// Package doctor runs the checks of cmwa doctor and prints their results: whether an agent
// could run jobs with this configuration, on this machine or in this Pod.
//
// It checks the configuration, the state directory, disks and mounts. It decides the order of
// checks and their output. It has no checks of engines, clusters and services: the packages
// that use them (cloud, runtime/docker, runtime/kube, runtime/process) return their checks
// as [selfcheck.Check], and cmd/cmwa passes them to this package. Only cmd/cmwa imports
// it.
//
// Decisions:
//
//   - It is a separate package, so that tests can run checks that hang, that depend on each
//     other, or that quote a server, without a command.
//   - No check changes anything: it claims no job, and creates no instance or directory. Only
//     with --exchange the service creates a token. A file that tests whether a directory is
//     writable is removed at once.
//   - A check fails if the agent would not start, or no job could run. Everything else is
//     a warning, which does not change the exit code, so that scripts can start the agent
//     only if doctor succeeds.
//   - Checks run concurrently. A check waits for the check that it needs. The output
//     always has the same order.
//   - This package sanitizes all texts: each is one line of limited length, without tokens,
//     passwords in URLs, or control characters.
package doctor
