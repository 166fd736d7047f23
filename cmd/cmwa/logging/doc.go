// Package logging contains the log of the agent: its format, its level and its sink,
// which a reload replaces while the log is in use.
//
// It knows the formats text and json, standard error and syslog. It does not know
// what is logged. Only cmd/cmwa imports it.
//
// Decisions:
//
//   - The format of a configuration holds from the first line. The errors that end a
//     start are lines of the log, too, if the format is json.
//   - In JSON, a duration is a number of seconds under a key with the unit:
//     duration_seconds, retry_in_seconds. Without this, package slog writes
//     nanoseconds without a unit.
package logging
