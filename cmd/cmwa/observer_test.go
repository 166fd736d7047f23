package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// observed is what an observer has seen of one deployment.
type observed struct {
	claims int // answers to polls that contain the deployment
	runs   int // runs of its script
	finals int // reports that end its job and that the service has accepted
}

// observer is a proxy in front of a service that counts the claims, the runs and the
// final reports of each deployment.
type observer struct {
	url string

	mu   sync.Mutex
	jobs map[string]string    // ids of deployments, by the id of the job
	all  map[string]*observed // by the id of the deployment
}

// witnessPath is the path at which the script of a job reports that it runs.
const witnessPath = "/witness/"

// observe starts an observer of the service of a world.
func (w *world) observe() *observer {
	w.t.Helper()
	target, err := url.Parse(w.url)
	w.must(err)
	listener, err := net.Listen("tcp", net.JoinHostPort(target.Hostname(), "0"))
	w.must(err)
	o := &observer{
		url: "http://" + listener.Addr().String(), jobs: map[string]string{}, all: map[string]*observed{},
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: o.answered,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := &http.Server{ReadHeaderTimeout: storyLimit, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if id, ok := strings.CutPrefix(r.URL.Path, witnessPath); ok {
				o.change(id, func(s *observed) { s.runs++ })
				return
			}
			if err := keepBody(r); err != nil {
				panic(http.ErrAbortHandler) // the client has closed the connection
			}
			proxy.ServeHTTP(w, r)
		})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	w.t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return o
}

// keepBody reads the body of a request, and sets GetBody so that the body can be read
// again.
func keepBody(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, err = r.GetBody()
	return err
}

// answered counts a response that contains a claim, or that accepts a final report.
func (o *observer) answered(r *http.Response) error {
	path := strings.Split(strings.Trim(r.Request.URL.Path, "/"), "/")
	switch {
	case r.StatusCode != http.StatusOK:
	case r.Request.URL.Path == "/api/deployments/poll":
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		var claim struct{ JobID, DeploymentID string }
		if json.Unmarshal(text, &claim) != nil || claim.JobID == "" {
			return nil
		}
		o.mu.Lock()
		o.jobs[claim.JobID] = claim.DeploymentID
		o.mu.Unlock()
		o.change(claim.DeploymentID, func(s *observed) { s.claims++ })
	case len(path) == 6 && path[5] == "status" && r.Request.GetBody != nil:
		body, err := r.Request.GetBody()
		if err != nil {
			return err
		}
		var report struct{ Status string }
		if json.NewDecoder(body).Decode(&report) != nil ||
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
	return fmt.Sprintf("wget -q -O - %s%s$PULUMI_CI_BUILD_ID", o.url, witnessPath)
}

func (w *world) witnessFile() string { return filepath.Join(w.directory, "witness") }

// of returns what the observer has seen of the stack's deployment, and the id of its job.
func (o *observer) of(w *world, stack string) (s observed, job string) {
	w.t.Helper()
	w.mu.Lock()
	id := w.ids[stack]
	w.mu.Unlock()
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
