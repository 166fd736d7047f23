// Package configure writes a configuration file, or changes one, from flags and
// from the answers of a person at a terminal.
//
// It knows which credentials the agent can use, how a terminal is read without
// showing a token, and how a file is replaced at once or not at all. The rules for
// values and the form of the file are those of package schema. It never knows a
// command line, a service or a running agent: cmd/cmwa defines the flags, and only
// cmd/cmwa imports it.
//
// Decisions:
//
//   - It is a package because a dialogue and careful file replacement have nothing
//     in common with the flags and the wiring of cmd/cmwa.
//   - A token is never a flag, because every user of a machine can read command
//     lines. It comes from a terminal that does not show it, from standard input,
//     or from a file.
//   - Everything is asked and checked before the first byte is written, and the
//     result is loaded as the agent would load it.
package configure
