// Package command describes the commands of a program. The flags, the help and the
// completion scripts of a command all come from one description.
//
// It knows forms of command lines, the flag library, and how bash, zsh and fish
// complete. It does not know what a command does: the program passes a function. Of
// schema/position it uses only the search for the closest name.
//
// Rules for every program:
//
//   - Help that was requested, by --help, -h or the command help, goes to standard
//     output, and the exit code is 0. A mistake is one line on standard error with
//     exit code 2.
//   - Flags are written with two dashes, may follow arguments, and end at --.
//   - A mistyped flag or command is answered with the one that is meant.
//   - The commands help, version and completion exist in every program, and --version
//     is the same as version.
//
// Decisions:
//
//   - It is a package because its output is text with rules, which tests check without
//     running a command. Both programs with commands use it.
//   - A form is a list of items and not a text, so that the usage line, the flags and the
//     check of the number of arguments come from one place.
//   - Errors of flags are made here from the texts of package flag, because that
//     package prints the whole usage and quotes values, which may be secrets.
package command
