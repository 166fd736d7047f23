package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// Exit codes that all programs share.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2 // the command line or the configuration is wrong
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

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// ExitError ends a program with an exit code of its own. Nothing is printed for
// it, because everything has been printed.
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Exit prints the error of a program to stderr, unless it is nil, a request for
// help or an [ExitError], and returns the exit code.
func Exit(stderr io.Writer, program string, err error) int {
	var code ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return ExitOK
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintf(stderr, "%s: %v\n", program, err)
	var usage UsageError
	if errors.As(err, &usage) {
		return usage.Code
	}
	return ExitFailure
}
