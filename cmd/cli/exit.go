package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Exit codes that all programs share.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2   // the command line or the configuration is wrong
	ExitInterrupted = 130 // 128 plus the number of SIGINT, as shells report it
)

// UsageError is an error that only a change of the command line, or of a file that
// it names, can fix.
type UsageError struct {
	Err  error
	Code int // exit code
}

// Usage returns err as a usage error.
func Usage(err error) error { return UsageError{err, ExitUsage} }

// Usagef returns a formatted usage error.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Error returns the text of the cause.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.Err }

// ExitError ends a program with a particular exit code. [Exit] prints nothing for
// it, because the program has printed everything already.
type ExitError int

// Error returns the exit code as text.
func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Exit prints the error of a program to stderr, unless it is nil, a request for
// help or an [ExitError], and returns the exit code. Each line begins with the name of
// the program, except indented lines, which belong to the line before.
func Exit(stderr io.Writer, program string, err error) int {
	if _, printed := errors.AsType[ExitError](err); printed || err == nil || errors.Is(err, flag.ErrHelp) {
		return Code(err)
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.HasPrefix(line, " ") { // such as the hint of the line above
			line = program + ": " + line
		}
		fmt.Fprintln(stderr, line)
	}
	return Code(err)
}

// Code returns the exit code of an error.
func Code(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return ExitOK
	}
	if code, ok := errors.AsType[ExitError](err); ok {
		return int(code)
	}
	if usage, ok := errors.AsType[UsageError](err); ok {
		return usage.Code
	}
	return ExitFailure
}
