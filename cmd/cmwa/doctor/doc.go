// Package doctor runs the checks of cmwa doctor and prints what they find: whether an
// agent could run jobs with this configuration, on this machine or in this Pod.
//
// It knows the configuration, the state folder, disks and mounts, in which order
// checks are run and printed, and what may be printed. It never knows an engine, a
// cluster or a service: the packages that do (cloud, runtime/docker, runtime/kube,
// runtime/process) return their checks as [runtime.SelfCheck], and cmd/cmwa passes
// them in. Only cmd/cmwa imports it.
//
// Decisions:
//
//   - It is a package because checks that hang, depend on each other, or quote the
//     answer of a server need tests that run no command.
//   - Nothing is changed: no job is claimed, no instance, folder or token is made. A
//     file that proves that a folder can be written to is removed at once.
//   - A check fails when the agent would not start, or no job could run. Everything
//     else is a warning, which does not change the exit code, so that a start can
//     depend on it.
//   - Checks run at the same time, but a check waits for the one that it needs, and
//     the output has always the same order.
//   - Texts are cleaned here, once, for all checks: one line, of limited length,
//     without anything that looks like a token or a password in a URL, or controls a
//     terminal.
package doctor
