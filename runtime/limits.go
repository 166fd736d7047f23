package runtime

import "time"

// StopGrace is the time between SIGTERM and SIGKILL of a job's instance. The runner gives
// its step five seconds less.
const StopGrace = 30 * time.Second

// HeartbeatLimit is the time without a heartbeat after which a service declares a job
// failed (Pulumi documentation, "Customer-managed runners"). Messages about a job contain
// DeclaredFailed if this agent can report nothing more about it.
const (
	HeartbeatLimit = 10 * time.Minute
	DeclaredFailed = "the service declares it failed after ten minutes without a heartbeat"
)

// HeartbeatInterval is the time between two heartbeats of a job, a small part of
// [HeartbeatLimit]. The agent sends heartbeats until the runner sends them.
const HeartbeatInterval = 30 * time.Second

// MaxCancelGrace is the longest cancel grace period. A service declares a cancelled job failed
// immediately, and the log of the job may end there, although the job has not stopped yet. So a
// user should not cancel a job at the service if its operation needs longer than this to stop.
const MaxCancelGrace = time.Hour
