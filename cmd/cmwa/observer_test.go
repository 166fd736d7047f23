package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// front starts a proxy in front of the service of a world. The proxy calls asked with each request
// and answered with each response. The body of a request can be read again with its GetBody.
func (w *world) front(asked func(*http.Request), answered func(*http.Response) error) (*http.Server, string) {
	w.t.Helper()
	target, err := url.Parse(w.url)
	w.must(err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	w.t.Cleanup(transport.CloseIdleConnections)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.ModifyResponse = transport, answered
	proxy.ErrorLog = log.New(io.Discard, "", 0) // it would report requests that agents cancel
	server, address := serve(w.t, "tcp", net.JoinHostPort(target.Hostname(), "0"), http.HandlerFunc(
		func(rw http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler) // the client has closed the connection
			}
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
			r.Body, _ = r.GetBody()
			asked(r)
			proxy.ServeHTTP(rw, r)
		}))
	return server, "http://" + address
}

func isPoll(r *http.Request) bool { return r.URL.Path == "/api/deployments/poll" }

// claimOf returns the claim in the response to a poll. Its JobID is empty without one.
func claimOf(r *http.Response) (claim cloud.Poll, err error) {
	if !isPoll(r.Request) || r.StatusCode != http.StatusOK {
		return claim, nil
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return claim, err
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	err = json.Unmarshal(text, &claim)
	return claim, err
}

// bodyTo decodes the JSON body of a request to front, which may have been sent already.
func bodyTo(r *http.Request, value any) error {
	body, err := r.GetBody()
	if err != nil {
		return err
	}
	return json.NewDecoder(body).Decode(value)
}

// observed is what an observer has seen of one deployment.
type observed struct {
	claims int // answers to polls that contain the deployment
	runs   int // runs of its script
	finals int // reports that end its job and that the service has accepted
}

// observer is a proxy in front of a service. It records the polls of each token, and counts the
// claims, the runs and the final reports of each deployment.
type observer struct {
	server    *http.Server
	url       string
	witnesses string // URL to which the script of a job sends a request with its deployment's id

	mu    sync.Mutex
	polls map[string]int       // by token
	first map[string]time.Time // time of the first poll, by token
	last  map[string]time.Time // time of the last poll, by token
	jobs  map[string]string    // ids of deployments, by the id of the job
	all   map[string]*observed // by the id of the deployment
}

// observe starts an observer of the service of a world.
func (w *world) observe() *observer {
	w.t.Helper()
	o := &observer{
		polls: map[string]int{}, first: map[string]time.Time{}, last: map[string]time.Time{},
		jobs: map[string]string{}, all: map[string]*observed{},
	}
	o.server, o.url = w.front(o.asked, o.answered)
	at, err := url.Parse(o.url)
	w.must(err)
	_, address := serve(w.t, "tcp", net.JoinHostPort(at.Hostname(), "0"), http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			o.change(strings.TrimPrefix(r.URL.Path, "/"), func(s *observed) { s.runs++ })
		}))
	o.witnesses = "http://" + address
	return o
}

// countPolls starts an observer. From then on, its URL is the world's URL of the service.
func (w *world) countPolls() *observer {
	w.t.Helper()
	o := w.observe()
	w.url = o.url
	return o
}

// asked records a poll.
func (o *observer) asked(r *http.Request) {
	if !isPoll(r) {
		return
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "token ")
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.polls[token]++
	o.last[token] = now
	if o.polls[token] == 1 {
		o.first[token] = now
	}
}

// answered counts a response that contains a claim, or that accepts a final report.
func (o *observer) answered(r *http.Response) error {
	claim, err := claimOf(r)
	if err != nil || r.StatusCode != http.StatusOK {
		return err
	}
	path := strings.Split(strings.Trim(r.Request.URL.Path, "/"), "/")
	switch {
	case claim.JobID != "":
		o.mu.Lock()
		o.jobs[claim.JobID] = claim.DeploymentID
		o.mu.Unlock()
		o.change(claim.DeploymentID, func(s *observed) { s.claims++ })
	case len(path) == 6 && path[5] == "status":
		var report cloud.StepStatus
		if bodyTo(r.Request, &report) != nil ||
			report.Status != "failed" && (report.Status != "succeeded" || path[4] == "0") {
			return nil
		}
		o.mu.Lock()
		id := o.jobs[path[3]]
		o.mu.Unlock()
		o.change(id, func(s *observed) { s.finals++ })
	}
	return nil
}

func (o *observer) change(deployment string, change func(*observed)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[deployment] == nil {
		o.all[deployment] = &observed{}
	}
	change(o.all[deployment])
}

// witness returns a line of a script that counts a run of the story's job. In a container
// the line sends a request to the observer. In a process it appends to a file, because the
// machine may have no wget.
func (o *observer) witness(w *world) string {
	if w.target == "process" {
		return "echo ran >>" + w.witnessFile()
	}
	return fmt.Sprintf("wget -q -O - %s/$PULUMI_CI_BUILD_ID", o.witnesses)
}

func (w *world) witnessFile() string { return filepath.Join(w.directory, "witness") }

// of returns what the observer has seen of the stack's deployment, and the id of its job.
func (o *observer) of(w *world, stack string) (s observed, job string) {
	w.t.Helper()
	id := w.id(stack)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[id] != nil {
		s = *o.all[id]
	}
	for known, deployment := range o.jobs {
		if deployment == id {
			job = known
		}
	}
	if text, err := os.ReadFile(w.witnessFile()); err == nil {
		s.runs += strings.Count(string(text), "ran\n")
	}
	return s, job
}

// count returns the number of polls of a token.
func (o *observer) count(token string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.polls[token]
}

// firstOf returns the time of the first poll of a token.
func (o *observer) firstOf(token string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.first[token]
}

// claimed returns how often agents claimed the jobs of these stacks.
func (o *observer) claimed(w *world, stacks ...string) (count int) {
	for _, stack := range stacks {
		saw, _ := o.of(w, stack)
		count += saw.claims
	}
	return count
}

// wantClaimedOnce checks that agents claimed the job of each of these stacks once.
func (o *observer) wantClaimedOnce(w *world, stacks ...string) {
	w.t.Helper()
	for _, stack := range stacks {
		if claims := o.claimed(w, stack); claims != 1 {
			w.t.Errorf("%s was claimed %d times, want once", stack, claims)
		}
	}
}

// waitPoll blocks until a token has polled again.
func (w *world) waitPoll(o *observer, token string) {
	w.t.Helper()
	before := o.count(token)
	w.eventually("the pool polls", func() bool { return o.count(token) > before })
}

// wantNoPolls checks that one token does not poll while another one polls five times.
func (w *world) wantNoPolls(o *observer, token, other string) {
	w.t.Helper()
	before, from := o.count(token), o.count(other)
	w.eventually("the other pool has polled five times", func() bool { return o.count(other) >= from+5 })
	if more := o.count(token) - before; more > 0 {
		w.t.Errorf("a pool that must not poll has polled %d times", more)
	}
}

// within returns the tokens that have polled in the last span, sorted.
func (o *observer) within(span time.Duration) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var tokens []string
	for token, last := range o.last {
		if time.Since(last) <= span {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return tokens
}
