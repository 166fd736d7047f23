// Package configure writes a configuration file, or changes one, from flags and
// from the answers of a person at a terminal.
//
// It knows which credentials the agent can use, how to read a token from a terminal
// without showing it, and how to replace a file as a whole or not at all. The rules for
// values and the form of the file are those of package schema. The package contains
// nothing about a command line, a service or a running agent: cmd/cmwa defines the flags
// and the check of a token, and only cmd/cmwa imports the package.
//
// Decisions:
//
//   - This is a package of its own because a dialogue and careful file replacement have
//     nothing in common with the flags and the wiring of cmd/cmwa.
//   - A token is never a flag, because every user of a machine can read command
//     lines. It comes from a terminal that does not show it, from standard input,
//     or from a file.
//   - All answers are read and checked before the first byte is written, and the
//     result is loaded as the agent would load it.
//   - The previous content of a changed file is kept in a file with .bak after the name. Nothing
//     is restored after an error: a token file that is written before its configuration has a
//     token that the service has accepted, or could not check.
package configure
