package runtimetest

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// FaultKind is what a [Proxy] does to a call.
type FaultKind string

// The kinds of faults. A fault is injected before or after the proxy forwards the call to the
// service; see [Fault.After]. If it is injected before, the service never gets the request;
// only Latency forwards the request later. If it is injected after, the service has acted,
// and its response is lost or changed.
const (
	Latency   FaultKind = "latency"    // the request is forwarded after Delay
	Reset     FaultKind = "reset"      // the client's connection is reset
	BlackHole FaultKind = "black hole" // nothing passes the client's connection any more
	Stray     FaultKind = "stray"      // a response with Status, as a gateway between client and service sends it
	HTML      FaultKind = "html"       // 200 with the HTML page of a proxy or single-page application
	SlowBody  FaultKind = "slow body"  // the service's response arrives in pieces over Delay; always after
	Truncated FaultKind = "truncated"  // half of the service's body arrives as if it were complete; always after
	Cut       FaultKind = "cut"        // half of the service's body arrives, and then a reset; always after
)

// Fault is one fault. The zero value is no fault.
type Fault struct {
	Kind       FaultKind
	After      bool          // inject the fault after the service has acted; only for Reset, BlackHole, Stray and HTML
	Status     int           // of Stray: an HTTP status
	RetryAfter string        // of Stray: the header's value; empty sends none
	Body       string        // of Stray: the response's body
	Delay      time.Duration // of Latency and SlowBody
}

// String returns the name under which [Proxy.Injected] counts the fault.
func (f Fault) String() string {
	name := string(f.Kind)
	if f.Kind == Stray {
		name = fmt.Sprint(f.Status)
		if f.RetryAfter != "" {
			name += " with Retry-After"
		}
	}
	if f.After && f.Kind != Latency && !f.changesAnswer() {
		name += " after"
	}
	return name
}

// before returns a similar fault that loses no response of the service. It is for polls: the
// response to a poll may hand out a job, and must not be lost.
func (f Fault) before() Fault {
	if f.changesAnswer() {
		return Fault{Kind: Latency, Delay: f.Delay}
	}
	f.After = false
	return f
}

// Bodies of stray responses, as ingresses, gateways and load balancers send them. They do
// not have the form of the service's errors, which have a code.
var strayBodies = []string{
	"",
	"404 page not found\n",
	"<html><head><title>error</title></head><body><center>nginx</center></body></html>\n",
	`{"message":"no Route matched with those values"}`,
	"no available server\n",
	"{}",
}

// pastDate is a Retry-After in the past, such as a service with a slow clock sends.
const pastDate = "Mon, 02 Jan 2006 15:04:05 GMT"

// The statuses of stray responses.
var (
	strayClient = []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusConflict, http.StatusGone, http.StatusPreconditionFailed,
	}
	strayServer = []int{
		http.StatusInternalServerError, http.StatusNotImplemented, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests,
	}
)

// anyFault draws a fault. Those that make a client time out are rare.
func anyFault(random *rand.Rand) Fault {
	after := random.IntN(3) == 0
	switch chance := random.IntN(100); {
	case chance < 20:
		return Fault{Kind: Latency, Delay: between(random, 20*time.Millisecond, time.Second)}
	case chance < 32:
		return Fault{Kind: Reset, After: after}
	case chance < 34:
		return Fault{Kind: BlackHole, After: after}
	case chance < 58:
		return stray(random, strayClient, after)
	case chance < 78:
		return stray(random, strayServer, after)
	case chance < 88:
		return Fault{Kind: HTML, After: after}
	case chance < 92:
		return Fault{Kind: SlowBody, Delay: between(random, 200*time.Millisecond, 2*time.Second)}
	case chance < 96:
		return Fault{Kind: Truncated}
	default:
		return Fault{Kind: Cut}
	}
}

// anyStorm draws a fault that hits all calls during one storm.
func anyStorm(random *rand.Rand) Fault {
	switch random.IntN(6) {
	case 0:
		return stray(random, strayClient, false)
	case 1, 2:
		return stray(random, strayServer, false)
	case 3:
		return Fault{Kind: HTML}
	case 4:
		return Fault{Kind: Reset}
	default:
		return Fault{Kind: Latency, Delay: between(random, 200*time.Millisecond, time.Second)}
	}
}

func stray(random *rand.Rand, statuses []int, after bool) Fault {
	f := Fault{Kind: Stray, After: after}
	f.Status = statuses[random.IntN(len(statuses))]
	f.Body = strayBodies[random.IntN(len(strayBodies))]
	if f.Status == http.StatusServiceUnavailable || f.Status == http.StatusTooManyRequests {
		f.RetryAfter = []string{"", "0", "1", pastDate}[random.IntN(4)]
	}
	return f
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// Numbers of calls in a row that one drawn fault hits. Three refusals would end a job if the client waits 15 seconds
// before each retry, because then they are its only answers for 30 seconds.
const (
	longestBurst        = 3
	longestRefusalBurst = 2
)

// draw returns the fault of the n-th call (from 0) of one series of calls, such
// as the log batches of one job. The result depends only on the arguments, so a seed gives
// each job the same faults in any order of the jobs. Share is the part of the calls at which
// a fault begins, from 0 to 1.
func draw(seed uint64, series string, n int, share float64) Fault {
	for begin := max(0, n-longestBurst+1); begin <= n; begin++ {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s %d", series, begin)
		random := rand.New(rand.NewPCG(seed, hash.Sum64()))
		if random.Float64() >= share {
			continue
		}
		length := max(1, random.IntN(2*longestBurst)-longestBurst+1) // mostly 1
		fault := anyFault(random)
		switch {
		case fault.Kind == BlackHole:
			length = 1
		case fault.Kind == Stray && slices.Contains(strayClient, fault.Status):
			length = min(length, longestRefusalBurst)
		}
		if n < begin+length {
			return fault
		}
	}
	return Fault{}
}
