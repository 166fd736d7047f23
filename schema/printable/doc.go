// Package printable makes lines of text from values that come from outside: a message of a
// service, the name of a file, the error of an engine. No result ends a line early or controls
// a terminal. The package does not know what a text is about.
//
// It is a separate package because every part of the module prints such values. It imports no
// package of this module.
package printable
