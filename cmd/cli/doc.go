// Package cli contains what all programs of this module share: the version of the
// build, usage errors and exit codes, the signals that end a program, and reads of
// standard input that a signal can interrupt.
//
// It knows the process in which it runs. It does not know what a program does: it
// imports no package of this module, and only packages under cmd import it. Other
// packages receive the version, a context or a stream as an argument.
//
// Decisions:
//
//   - This is a package because, before it existed, two programs printed different
//     versions for a build without a version, had different exit codes, and each had
//     its own loop that counted signals.
//   - It has no flags and no help text. The workflow-runner imports it, is copied
//     into every job and must not contain a flag library. Commands with flags are in
//     cmd/cli/command.
package cli
