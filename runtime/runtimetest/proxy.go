package runtimetest

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// SeedVariable is the environment variable for the seed of the faults. A test logs its seed; a
// run with the same seed in this variable repeats the faults.
const SeedVariable = "CMWA_FAULT_SEED"

// FaultSeed returns the seed for the proxies of a test: the value of
// [SeedVariable], or a random one. It logs the seed.
func FaultSeed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(SeedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
	}
	t.Logf("the seed of the faults is %d; %s=%d repeats them", seed, SeedVariable, seed)
	return seed
}

const pollPath = "/api/deployments/poll" // of the call that hands out a job

const maxProxied = 64 << 20 // bytes of a body that a proxy forwards

// ProxyOptions are the options of [NewProxy].
type ProxyOptions struct {
	Target string  // base URL of the service
	Host   string  // to listen on; empty is 127.0.0.1
	TLS    bool    // serve HTTP/2 over TLS; otherwise HTTP/1
	Seed   uint64  // of all random choices; see FaultSeed
	Share  float64 // of calls at which a fault begins, from 0 to 1; a fault hits up to three calls in a row

	// Storms is the mean number of calls between two storms; 0 is no storm. A storm is one of
	// these: a fault of all calls for up to 3 s, an untrusted certificate on all new connections
	// for up to 3 s, or a black hole or a reset of all existing connections.
	Storms int
}

// Proxy forwards calls of agents and runners to a service, and injects faults: into calls
// that the seed selects, into all calls during a storm, and into calls for which a test
// orders a fault ([Proxy.Inject]). It counts calls per program, and records claims and
// reports of failed steps.
//
// A poll hands out a job as its side effect, so the protocol loses a job if the response is
// lost. A poll therefore gets only faults before it reaches the service, and a connection
// that carried a poll to the service is never broken.
//
// Methods are safe for concurrent use.
type Proxy struct {
	t         testing.TB
	o         ProxyOptions
	url       string
	authority string
	listener  *faultListener
	forward   *http.Transport // to the service
	polls     *http.Transport // to the service, with a new connection for each call
	over      chan struct{}   // closed at the end of the test

	mu       sync.Mutex
	stopped  bool
	orders   []*injection
	jobs     map[string]int // ordinal of the claim, by job id and by deployment id
	claims   map[string]int // by deployment id
	series   map[string]int // calls so far, by kind of call and job: see seriesOf
	injected map[string]int // by name of the fault or the storm: see Injected
	failed   []string       // calls with the status "failed", each as method, path and program
	lost     []string       // polls whose response may be lost
	calls    map[string][]time.Time
	weather  storms
	broken   tls.Certificate // of an unknown authority
}

// injection is a fault that a test ordered.
type injection struct {
	match func(*http.Request) bool
	left  int
	fault Fault
}

// storms is the state of the storms. A storm begins after a number of calls, and not at a
// time, so that a seed always gives the same sequence of storms.
type storms struct {
	random      *rand.Rand
	next        int // calls until the next storm
	until       time.Time
	fault       Fault
	silent      time.Time // when the last black hole started
	certificate time.Time // until then new connections get a certificate of an unknown authority
}

// NewProxy starts a proxy. It ends when the test ends.
func NewProxy(t testing.TB, o ProxyOptions) *Proxy {
	t.Helper()
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	inner := listen(t, o.Host)
	p := &Proxy{
		t: t, o: o, listener: newFaultListener(inner), over: make(chan struct{}),
		forward: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
		polls:   &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		jobs:    map[string]int{}, claims: map[string]int{}, series: map[string]int{},
		injected: map[string]int{}, calls: map[string][]time.Time{},
		weather: storms{random: rand.New(rand.NewPCG(o.Seed, 1))},
	}
	p.weather.next = p.callsUntilStorm()
	p.serve(inner.Addr().String())
	return p
}

func (p *Proxy) serve(address string) {
	p.t.Helper()
	server := &http.Server{
		Handler:  p,
		ErrorLog: log.New(io.Discard, "", 0), // it would report the faults of the proxy itself
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, faultConnOf(conn))
		},
	}
	p.url = "http://" + address
	listen := func() error { return server.Serve(p.listener) }
	if p.o.TLS {
		var good tls.Certificate
		p.authority, good = certify(p.t, p.o.Host)
		_, p.broken = certify(p.t, p.o.Host)
		server.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if p.untrusted() {
				return &p.broken, nil
			}
			return &good, nil
		}}
		p.url = "https://" + address
		listen = func() error { return server.ServeTLS(p.listener, "", "") }
	}
	var served sync.WaitGroup
	served.Go(func() { _ = listen() })
	p.t.Cleanup(func() {
		close(p.over)
		_ = server.Close()
		p.listener.each(func(c *faultConn) bool { return c.Close() == nil })
		served.Wait()
		p.CloseIdleConnections()
	})
}

// CloseIdleConnections closes the connections to the service that no call uses.
func (p *Proxy) CloseIdleConnections() { p.forward.CloseIdleConnections() }

type connKey struct{}

// URL returns the base URL for clients.
func (p *Proxy) URL() string { return p.url }

// Authority returns the certificate, in PEM form, of the authority that signed the
// certificate of a proxy with TLS. Clients must trust it.
func (p *Proxy) Authority() string { return p.authority }

// Inject orders a fault for the next count calls for which match returns true. An ordered
// fault takes precedence over storms and over the faults of the seed.
func (p *Proxy) Inject(fault Fault, count int, match func(*http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders = append(p.orders, &injection{match: match, left: count, fault: fault})
}

// Blackhole turns all existing connections into black holes, except those that
// carried a poll. New connections work.
func (p *Proxy) Blackhole() int { return p.listener.each((*faultConn).swallow) }

// Reset resets all existing connections, except those that carried a poll.
func (p *Proxy) Reset() int { return p.listener.each((*faultConn).reset) }

// StopFaults ends the drawn faults and the storms. Ordered faults still apply, and a
// connection that is a black hole stays one.
func (p *Proxy) StopFaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

// Claims returns the number of claims by deployment id.
func (p *Proxy) Claims() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.claims)
}

// Injected returns, by name, how often a fault was chosen for a call, and how often a storm
// started. It also counts a fault that was not injected because its connection is protected.
func (p *Proxy) Injected() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.injected)
}

// ReportedFailed returns the calls that reported a step as failed, even if they did not
// reach the service.
func (p *Proxy) ReportedFailed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.failed)
}

// LostPolls returns the polls whose job may be lost. Either the client had disconnected before
// the response, which no fault of the proxy causes, or a response with status 200 had no job id.
func (p *Proxy) LostPolls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lost)
}

// ServeHTTP serves one call.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// 1. Read the request, and choose its fault.
	conn := r.Context().Value(connKey{}).(*faultConn)
	body, err := io.ReadAll(io.LimitReader(r.Body, maxProxied))
	if err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	fault := p.decide(r, body)

	// 2. Inject a fault that applies before the service gets the request.
	if fault.Kind == Latency {
		runtime.Sleep(r.Context(), p.over, fault.Delay)
	} else if fault.Kind != "" && !fault.After && !fault.changesAnswer() && p.inject(w, r, conn, fault) {
		return
	}

	// 3. Forward the request. The connection of a poll is protected from faults first.
	poll := r.URL.Path == pollPath
	if poll && !conn.keep() {
		p.hang(r.Context())
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	answer, err := p.ask(r, body)
	if err != nil {
		http.Error(w, "the service cannot be reached: "+err.Error(), http.StatusBadGateway)
		return
	}
	if poll {
		p.handedOut(r, answer)
	}

	// 4. Inject a fault that applies after the service has answered, or send the response.
	if fault.After && p.inject(w, r, conn, fault) {
		return
	}
	answer.write(w, r, conn, fault)
}

func (f Fault) changesAnswer() bool {
	return f.Kind == SlowBody || f.Kind == Truncated || f.Kind == Cut
}

// inject answers a call with a fault. It reports false if the connection is protected from
// the fault.
func (p *Proxy) inject(w http.ResponseWriter, r *http.Request, conn *faultConn, fault Fault) bool {
	switch fault.Kind {
	case Reset:
		if !conn.reset() {
			return false
		}
		panic(http.ErrAbortHandler)
	case BlackHole:
		if !conn.swallow() {
			return false
		}
		p.hang(r.Context())
	case Stray:
		if fault.RetryAfter != "" {
			w.Header().Set("Retry-After", fault.RetryAfter)
		}
		if strings.HasPrefix(fault.Body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(fault.Status)
		_, _ = io.WriteString(w, fault.Body)
	case HTML:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w,
			"<!doctype html>\n<html><head><title>Sign in</title></head><body>Sign in</body></html>\n")
	default:
		return false
	}
	return true
}

// hang blocks a call on a black hole until its client disconnects or the test ends.
func (p *Proxy) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-p.over:
	}
	panic(http.ErrAbortHandler)
}

func (p *Proxy) handedOut(r *http.Request, a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.status != http.StatusOK {
		return
	}
	var poll struct{ JobID, DeploymentID string }
	if err := json.Unmarshal(a.body, &poll); err != nil || poll.JobID == "" {
		p.lost = append(p.lost, fmt.Sprintf("the response to a poll is %q", a.body))
		return
	}
	if r.Context().Err() != nil {
		p.lost = append(p.lost, fmt.Sprintf("%s left while deployment %s was handed out", r.UserAgent(),
			poll.DeploymentID))
	}
	p.claims[poll.DeploymentID]++
	if _, known := p.jobs[poll.JobID]; !known {
		p.jobs[poll.JobID], p.jobs[poll.DeploymentID] = len(p.jobs)/2, len(p.jobs)/2
	}
}
