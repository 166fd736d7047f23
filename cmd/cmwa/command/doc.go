// Package command describes the commands of cmwa. The flags, the usage text and the
// completions of a command all come from its one description.
//
// It knows forms of command lines, the flag library, and how bash, zsh and fish
// complete. It never knows what a command does: cmd/cmwa passes a function. Of
// schema/position it uses only the spelling correction.
//
// Decisions:
//
//   - It is a package because its output is text with rules of its own, which tests
//     check without running a command.
//   - A form is a list of items and not a text, so that a flag that is missing in the
//     usage line does not exist at all.
package command
