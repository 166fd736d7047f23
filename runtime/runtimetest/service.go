package runtimetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

const maxBody = 4 << 20 // bytes of a request

// Service is a strict job service in memory for runners. It serves the calls of a runner
// (step status, logs, heartbeat), accepts them only in the documented order, and records
// every call that a real service might reject ([Service.Violations]). It also has the calls
// of an agent that a Setup needs ([Service.Report]).
//
// The zero value is not ready for use. Methods are safe for concurrent use.
type Service struct {
	mux  *http.ServeMux
	mu   sync.Mutex
	jobs map[string]*ledger
	news chan struct{} // closed and replaced by each call of record
	bad  []string      // see Violations
}

// NewService returns a service without jobs.
func NewService() *Service {
	s := &Service{mux: http.NewServeMux(), jobs: map[string]*ledger{}, news: make(chan struct{})}
	s.mux.HandleFunc("PATCH /api/workflow/jobs/{job}/{step}/status", s.serveStatus)
	s.mux.HandleFunc("POST /api/workflow/jobs/{job}/{step}/logs", s.serveLogs)
	s.mux.HandleFunc("POST /api/workflow/jobs/{job}/heartbeat", s.serveHeartbeat)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, &refusal{http.StatusNotFound, "there is no such call"})
	})
	return s
}

// Add adds a job. From then on, calls with its token are served.
func (s *Service) Add(job *runtime.Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[job.ID] = newLedger(job)
}

// Record returns the record of a job, the zero Record for a job that was not added.
func (s *Service) Record(jobID string) Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job, ok := s.jobs[jobID]; ok {
		return job.snapshot()
	}
	return Record{}
}

// Violations returns a sentence for each call that was rejected, in order.
func (s *Service) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bad)
}

// Await blocks until ready returns true for the record of the job, and returns this record.
// If that takes longer than limit, Await fails the test, with the text what in the message.
func (s *Service) Await(t testing.TB, jobID, what string, ready func(Record) bool) Record {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		news := s.news
		s.mu.Unlock()
		record := s.Record(jobID)
		if ready(record) {
			return record
		}
		select {
		case <-news:
		case <-timer.C:
			t.Fatalf("waited %v for %s; the service has %+v", limit, what, record)
		}
	}
}

// Report records a report of the agent, as [runtime.Cloud] describes it.
func (s *Service) Report(_ context.Context, job *runtime.Job, report runtime.Report) error {
	batch := cloud.LogBatch{Offset: report.Offset}
	for _, line := range report.Lines {
		batch.Lines = append(batch.Lines, cloud.LogLine(line))
	}
	return s.record("the agent's report of job "+job.ID, job.ID, func(l *ledger) *refusal {
		if report.Status == runtime.Running {
			if no := l.status(report.Step, report.Status); no != nil {
				return no
			}
		}
		if len(batch.Lines) > 0 {
			if no := l.log(report.Step, batch); no != nil {
				return no
			}
		}
		if report.Status == "" || report.Status == runtime.Running {
			return nil
		}
		return l.status(report.Step, report.Status)
	})
}

// Claim returns no job. It makes the service a [runtime.Cloud], together with the
// following methods and Report.
func (s *Service) Claim(context.Context) (runtime.Claim, error) { return runtime.Claim{}, nil }

// Tune does nothing.
func (s *Service) Tune(runtime.Tuning) runtime.NextPoll { return runtime.NextPoll{} }

// Retry does nothing.
func (s *Service) Retry() runtime.NextPoll { return runtime.NextPoll{} }

// Health returns the zero value.
func (s *Service) Health() runtime.ServiceHealth { return runtime.ServiceHealth{} }

// Definition returns the definition that the given job contains.
func (s *Service) Definition(_ context.Context, job *runtime.Job) (runtime.Definition, error) {
	return job.Definition, nil
}

// JobStatus always returns Continue.
func (s *Service) JobStatus(context.Context, *runtime.Job) (runtime.JobStatus, error) {
	return runtime.Continue, nil
}

// ServeHTTP serves the calls of runners.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Service) serveStatus(w http.ResponseWriter, r *http.Request) {
	var body cloud.StepStatus
	s.serve(w, r, &body, func(l *ledger, step int) *refusal { return l.status(step, runtime.Status(body.Status)) })
}

func (s *Service) serveLogs(w http.ResponseWriter, r *http.Request) {
	var body cloud.LogBatch
	s.serve(w, r, &body, func(l *ledger, step int) *refusal { return l.log(step, body) })
}

func (s *Service) serveHeartbeat(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	s.serve(w, r, &body, func(l *ledger, _ int) *refusal {
		l.heartbeats++
		return nil
	})
}

// serve reads a call's body, checks the job's token, and applies act to the step in the path.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, body any, act func(*ledger, int) *refusal) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		s.answer(w, r, &refusal{http.StatusRequestEntityTooLarge, "the body is larger than 4 MiB"})
		return
	case err != nil:
		return // the client has disconnected, which is allowed
	}
	if err := json.Unmarshal(text, body); err != nil {
		s.answer(w, r, badRequest("the body: %v", err))
		return
	}
	err = s.record(r.Method+" "+r.URL.Path, r.PathValue("job"), func(l *ledger) *refusal {
		if r.Header.Get("Authorization") != cloud.AuthScheme+" "+l.token.Reveal() {
			return &refusal{http.StatusUnauthorized, "this is not the job's token"}
		}
		step, err := strconv.Atoi(cmp.Or(r.PathValue("step"), "0")) // a heartbeat has no step
		if err != nil {
			return &refusal{http.StatusNotFound, "the step is not a number"}
		}
		return act(l, step)
	})
	if no, ok := errors.AsType[*refusal](err); ok {
		writeError(w, no)
		return
	}
	_, _ = w.Write([]byte("{}"))
}

// record applies act to a job's ledger, wakes callers of Await, and records a refusal.
func (s *Service) record(call, jobID string, act func(*ledger) *refusal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	no := &refusal{http.StatusNotFound, "there is no such job"}
	if l, ok := s.jobs[jobID]; ok {
		no = act(l)
	}
	close(s.news)
	s.news = make(chan struct{})
	if no != nil {
		s.bad = append(s.bad, call+": "+no.Error())
		return no
	}
	return nil
}

// answer rejects a call whose job was not looked up, and records the refusal.
func (s *Service) answer(w http.ResponseWriter, r *http.Request, no *refusal) {
	s.mu.Lock()
	s.bad = append(s.bad, r.Method+" "+r.URL.Path+": "+no.Error())
	s.mu.Unlock()
	writeError(w, no)
}

func writeError(w http.ResponseWriter, no *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.code)
	_ = json.NewEncoder(w).Encode(cloud.ErrorBody{Code: no.code, Message: no.message})
}

// refusal is an error answer.
type refusal struct {
	code    int // HTTP status
	message string
}

func badRequest(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s", r.code, r.message) }
