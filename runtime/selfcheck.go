package runtime

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// SelfCheck is one check of a requirement of a pool or of the agent. It concerns the service,
// the engine of an executor, or this machine. Package cloud, the executors' packages and
// cmwa doctor provide checks, and cmwa doctor runs them.
type SelfCheck struct {
	// Name identifies the check to programs, so it does not change. It is in lower case
	// with hyphens, such as docker-engine.
	Name string

	// Needs is the name of an earlier check in the same list, or empty. If that check
	// fails or is skipped, this one is skipped.
	Needs string

	// Run makes the check. It claims no job, changes nothing permanently, and returns
	// soon after the end of ctx. It is called once, after the check that Needs names and
	// concurrently with others.
	Run func(ctx context.Context) CheckResult
}

// CheckLevel is the level of the result of a [SelfCheck].
type CheckLevel string

// The levels.
const (
	LevelOK      CheckLevel = "ok"
	LevelWarning CheckLevel = "warning" // jobs can run, but something may not be as intended
	LevelFailed  CheckLevel = "failed"  // the agent would not start, or no job could run
	LevelSkipped CheckLevel = "skipped" // the check was not made, so its result is unknown
)

// CheckResult is the result of a [SelfCheck]. Its texts may quote the answer of a service
// or an engine. A caller that prints them must remove line breaks and control characters,
// and limit their length.
type CheckResult struct {
	Level   CheckLevel
	Message string
	Hint    string // what to do; empty if there is nothing to do, or if Message ends with it
}

// CheckPassed returns the result of a check without a problem.
func CheckPassed(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelOK, Message: fmt.Sprintf(format, args...)}
}

// CheckWarned returns the result of a check with a warning.
func CheckWarned(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelWarning, Message: fmt.Sprintf(format, args...)}
}

// CheckFailed returns the result of a check that failed.
func CheckFailed(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelFailed, Message: fmt.Sprintf(format, args...)}
}

// CheckSkipped returns the result of a check that could not be made.
func CheckSkipped(format string, args ...any) CheckResult {
	return CheckResult{Level: LevelSkipped, Message: fmt.Sprintf(format, args...)}
}

// CheckError returns the result of a check that failed with err. The text of err must end with
// what to do. If err is nil, CheckError returns passed.
func CheckError(err error, passed CheckResult) CheckResult {
	if err == nil {
		return passed
	}
	return CheckResult{Level: LevelFailed, Message: err.Error()}
}

// WithHint returns the result with a hint.
func (r CheckResult) WithHint(format string, args ...any) CheckResult {
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
