// Package cli holds what the programs of this module share as command lines: the
// version of the build, usage errors and exit codes, the signals that end a program,
// reads of standard input that a signal can end, and the quoting of a shell's words.
//
// It knows the process it runs in. It never knows what a program does: it imports
// no package of this module, and only programs import it. Other packages get the
// version, a context or a stream as an argument.
//
// Decisions:
//
//   - It is a package because two programs had a version of their own, which
//     differed for a build without a version, two had exit codes of their own, and
//     two counted signals with the same loop.
//   - It has no flags and no usage text. The workflow-runner imports it, is copied
//     into every job and must not contain a flag library.
package cli
