// Package selfcheck describes the checks that cmwa doctor runs. Package cloud, the executors'
// packages and cmwa doctor provide them, each for what it knows: the service, an engine, this
// machine. They have this package so that no executor imports the doctor.
package selfcheck

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Check is one check of a requirement of a pool or of the agent.
type Check struct {
	// Name identifies the check to programs, so it does not change. It is in lower case
	// with hyphens, such as docker-engine.
	Name string

	// Needs is the name of an earlier check in the same list, or empty. If that check
	// fails or is skipped, this one is skipped.
	Needs string

	// Run makes the check. It claims no job, changes nothing permanently, and returns
	// soon after the end of ctx. It is called once, after the check that Needs names and
	// concurrently with others.
	Run func(ctx context.Context) Result
}

// Level is the level of a [Result].
type Level string

// The levels.
const (
	LevelOK      Level = "ok"
	LevelWarning Level = "warning" // jobs can run, but something may not be as intended
	LevelFailed  Level = "failed"  // the agent would not start, or no job could run
	LevelSkipped Level = "skipped" // the check was not made, so its result is unknown
)

// Result is the result of a [Check]. Its texts may quote the response of a service or an
// engine. A caller that prints them must remove line breaks and control characters, and
// limit their length.
type Result struct {
	Level   Level
	Message string
	Hint    string // what to do; empty if there is nothing to do, or if Message ends with it
}

// Passed returns the result of a check without a problem.
func Passed(format string, args ...any) Result {
	return Result{Level: LevelOK, Message: fmt.Sprintf(format, args...)}
}

// Warned returns the result of a check with a warning.
func Warned(format string, args ...any) Result {
	return Result{Level: LevelWarning, Message: fmt.Sprintf(format, args...)}
}

// Failed returns the result of a check that failed.
func Failed(format string, args ...any) Result {
	return Result{Level: LevelFailed, Message: fmt.Sprintf(format, args...)}
}

// Skipped returns the result of a check that could not be made.
func Skipped(format string, args ...any) Result {
	return Result{Level: LevelSkipped, Message: fmt.Sprintf(format, args...)}
}

// Error returns the result of a check that failed with err. The text of err must end with
// what to do. If err is nil, Error returns passed.
func Error(err error, passed Result) Result {
	if err == nil {
		return passed
	}
	return Result{Level: LevelFailed, Message: err.Error()}
}

// WithHint returns the result with a hint.
func (r Result) WithHint(format string, args ...any) Result {
	r.Hint = fmt.Sprintf(format, args...)
	return r
}

// OnLoopback reports whether a URL names the machine, container or Pod of the program that
// uses the URL: its host is localhost, or an address such as 127.0.0.1 or 0.0.0.0.
func OnLoopback(service string) bool {
	u, err := url.Parse(service)
	if err != nil {
		return false
	}
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	address, err := netip.ParseAddr(name)
	address = address.Unmap()
	return name == "localhost" || strings.HasSuffix(name, ".localhost") ||
		err == nil && (address.IsLoopback() || address.IsUnspecified())
}
