package runtime

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// SelfCheck is one check of what a pool, or the agent as a whole, needs before it can
// run a job: of its service, of the engine of its executor, or of this machine. The
// package that knows these returns it, and cmwa doctor runs it.
type SelfCheck struct {
	// Name identifies the check to programs, so it does not change: words in lower
	// case with hyphens, such as docker-engine.
	Name string

	// Needs is the name of a check before this one in the same list. If that one
	// fails, or is skipped, this one is skipped. Empty is none.
	Needs string

	// Run makes the check. It claims no job, changes nothing that outlives it, and
	// returns soon after the end of ctx. It is called once, after the check that
	// Needs names and at the same time as others.
	Run func(ctx context.Context) CheckResult
}

// CheckLevel is how a [SelfCheck] ended.
type CheckLevel string

// The levels.
const (
	LevelOK      CheckLevel = "ok"
	LevelWarning CheckLevel = "warning" // jobs can run, and something may not be as intended
	LevelFailed  CheckLevel = "failed"  // the agent would not start, or no job could run
	LevelSkipped CheckLevel = "skipped" // not known
)

// CheckResult is what a [SelfCheck] has found. Its texts may quote the answer of a
// service or an engine. A caller that prints them must remove line breaks and control
// characters, and limit their length.
type CheckResult struct {
	Level   CheckLevel
	Message string // what was found
	Cure    string // what to do; empty if nothing is to be done, or if Message ends with it
}

// CheckPassed returns the result of a check that has found no problem.
func CheckPassed(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelOK, Message: fmt.Sprintf(format, args...)}
}

// CheckWarned returns the result of a check that has found something to look at.
func CheckWarned(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelWarning, Message: fmt.Sprintf(format, args...)}
}

// CheckFailed returns the result of a check that has found a problem.
func CheckFailed(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelFailed, Message: fmt.Sprintf(format, args...)}
}

// CheckSkipped returns the result of a check that could not be made.
func CheckSkipped(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelSkipped, Message: fmt.Sprintf(format, args...)}
}

// CheckError returns the result of a check that has found a problem: an error whose
// text ends with what to do. No error is no problem, and passed is returned.
func CheckError(err error, passed CheckResult) CheckResult {
	if err == nil {
		return passed
	}
	return CheckResult{Level: LevelFailed, Message: err.Error()}
}

// WithCure returns the result with what to do.
func (r CheckResult) WithCure(format string, args ...any) CheckResult {
	r.Cure = fmt.Sprintf(format, args...)
	return r
}

// OnLoopback reports whether the host of a URL means the machine, container or Pod
// that resolves it: localhost, or an address such as 127.0.0.1 or 0.0.0.0.
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
