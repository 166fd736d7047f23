package cloud

import "time"

// Times of a connection. A firewall or a load balancer may drop a connection without a message.
// All requests on this connection, including heartbeats, would then time out one after the other.
// A dead connection is closed within 25 seconds, which is less than the heartbeat interval of
// 30 seconds.
const (
	pingIdle      = 15 * time.Second // of silence, until a ping (HTTP/2) or a probe (TCP) is sent
	pingTimeout   = 10 * time.Second // for the response to a ping, and for data to be written
	probeInterval = 5 * time.Second  // between two TCP probes
	unackedLimit  = 25 * time.Second // for sent data to be acknowledged (TCP_USER_TIMEOUT, Linux only)
	dialTimeout   = 30 * time.Second // as in Go's default transport
)

// Times of a poll. The response may be a job that no other agent will get. Therefore
// request_timeout limits only the wait for the beginning of the response. This limit is at
// least minPollTimeout. After the beginning, bodyTimeout limits the remaining response.
const (
	minPollTimeout = 10 * time.Second
	bodyTimeout    = 2 * time.Minute

	// maxRetryAfter limits a Retry-After. A wrong clock or unit must not stop calls for
	// days.
	maxRetryAfter = 24 * time.Hour
)

// Times of the agent's calls about a job.
const (
	jobWait                = time.Second // before the first retry; doubles with each
	jobMaxWait             = 15 * time.Second
	linesTimeout           = time.Minute     // lines are less important than the job's outcome
	statusHeartbeatTimeout = 5 * time.Second // for the heartbeat with a status; others are sent regularly

	// suppressTime is how long status calls about a job are suppressed after the service has
	// turned out to have neither of the two calls.
	suppressTime = time.Hour
)

// Times after which a refusal is accepted.
const (
	refusalMinDuration = 30 * time.Second // in which the refusal was the only response
	refusalMaxGap      = 15 * time.Second // a longer time between two refusals counts as this
	confirmWait        = 2 * time.Second  // before another call confirms a final refusal

	// refusalRetention is how long refusals of status calls are kept after the last one. It
	// is longer than the longest job_status_loop_interval, 24 hours.
	refusalRetention = 2 * 24 * time.Hour
)

// Times of leases.
const (
	// capabilityTime is how long no lease is requested after the service has turned out to
	// have no leases, or to give leases that the agent cannot carry out.
	capabilityTime = time.Hour

	maxLease     = 24 * time.Hour         // a longer one in a response is shortened to this
	leaseWait    = 200 * time.Millisecond // before a retry of complete; doubles with each
	leaseMaxWait = 10 * time.Second
)

// Times of an exchanged token.
const (
	renewRetry           = time.Minute          // between attempts to renew a valid token
	defaultTokenLifetime = 2 * time.Hour        // the service's default
	maxTokenLifetime     = 366 * 24 * time.Hour // a longer one in a response is shortened to this
)

// Times of the self checks.
const (
	attemptLimit  = 15 * time.Second    // of one request, its response included
	renewalNotice = 14 * 24 * time.Hour // a certificate that expires sooner causes a warning

	// Differences from the service's clock, which is assumed to be right. Its Date header
	// has whole seconds.
	clockWarning = time.Minute     // tokens may be refused
	clockLimit   = 5 * time.Minute // most verifiers refuse tokens and signatures
)
