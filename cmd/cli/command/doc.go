// Package command describes the commands of a program. The flags, the help and the
// completions of a command all come from one description.
//
// It knows forms of command lines, the flag library, and how bash, zsh and fish
// complete. It does not know what a command does: the program passes a function. Of
// schema/position it uses only the search for the closest name.
//
// Rules for every program:
//
//   - Help that was requested, by --help, -h or the command help, goes to standard
//     output, and the exit code is 0. A mistake is reported on standard error, with exit
//     code 2 unless the command has another one.
//   - Flags are written with two dashes, may follow arguments, and end at --.
//   - The error for a mistyped flag or command names the one that is probably meant.
//   - The commands help, version and completion exist in every program, and --version
//     is the same as version.
//
// Decisions:
//
//   - This is a package of its own because its output is text with rules, and tests can
//     check the text without running a command. Both programs with commands use it.
//   - A form is a list of items and not a text, so that the usage line, the flags and the
//     check of the number of arguments come from one place.
//   - The completion scripts run the program with the hidden command __complete, so that there is
//     one implementation for three shells, and the scripts need no update with the program.
//   - The errors of package flag are replaced, because they quote values, which may be
//     secrets. The usage text that package flag prints is discarded.
package command
