// Package logging contains the log of the agent. A reload can replace its format, its
// level and its destination while the log is in use.
//
// It knows the formats text and json, standard error and syslog. It does not know
// what is logged. Only cmd/cmwa imports it.
//
// Decisions:
//
//   - The log has the format of the configuration from the first line. If the format is
//     json, the errors that end a start are also lines of the log.
//   - In JSON, a duration is a number of seconds under a key with the unit:
//     duration_seconds, retry_in_seconds. Without this, package slog writes
//     nanoseconds without a unit.
package logging
