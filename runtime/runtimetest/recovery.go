package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

func testList(t *testing.T, s *fixture) {
	before := time.Now()
	quick, lasting, other := s.job(t, Quick), s.job(t, Lasting), s.job(t, Lasting)
	foreign := s.job(t, Lasting)
	elsewhere := s.pool
	elsewhere.Name, elsewhere.Identity.Organization = "other", "another"
	other.Pool, other.PoolName, other.Identity = elsewhere.Key(), elsewhere.Name, elsewhere.Identity
	other.Kind = runtime.InsightsScan
	foreign.Agent += "-other"
	ended := s.start(t, quick)
	running := s.start(t, lasting)
	third := s.start(t, other)
	theirs := s.start(t, foreign)
	t.Cleanup(func() { _ = s.executor.Remove(context.Background(), theirs, 0) })
	s.wait(t, ended)
	s.ready(t, running)

	found := s.list(t)
	if len(found) != 3 {
		t.Fatalf("found %+v, want the ended and the two running jobs of this agent, of both pools", found)
	}
	jobs := map[string]*runtime.Job{ended: quick, running: lasting, third: other}
	for _, f := range found {
		want := jobs[f.ID]
		if want == nil {
			t.Errorf("found %+v, which this agent has not started", f)
			continue
		}
		if f.Pool != want.Pool || f.PoolName != want.PoolName || f.Identity != want.Identity {
			t.Errorf("found %+v, want pool %s, %s, %+v", f, want.Pool, want.PoolName, want.Identity)
		}
		if f.Job != want.ID || f.WorkflowID != want.WorkflowID || f.Generation != want.Generation ||
			f.Running != (want != quick) {
			t.Errorf("found %+v, want job %s of %s, generation %d, running %v", f, want.ID, want.WorkflowID,
				want.Generation, want != quick)
		}
		if f.Kind.Leased() != want.Kind.Leased() || f.Kind.Leased() && f.Kind != want.Kind {
			t.Errorf("found %s of kind %q, want %q", f.Job, f.Kind, want.Kind)
		}
		if f.Work != want.Definition.Work {
			t.Errorf("found %s with the work %+v, want %+v", f.Job, f.Work, want.Definition.Work)
		}
		// Engines report times in whole seconds or finer, by their own clocks.
		if f.Started.Before(before.Add(-5*time.Second)) || f.Started.After(time.Now().Add(5*time.Second)) {
			t.Errorf("%s has the start time %v, which is not within 5 s of its actual start", f.Job, f.Started)
		}
		if f.Running != f.Ended.IsZero() {
			t.Errorf("%s has ended at %v, and is running: %v", f.Job, f.Ended, f.Running)
		}
	}
	foreigns, err := s.executor.List(t.Context(), foreign.Agent)
	if err != nil || len(foreigns) != 1 || foreigns[0].ID != theirs {
		t.Errorf("another agent finds %+v (%v), want its own job", foreigns, err)
	}
}

func testRestart(t *testing.T, s *fixture) {
	job := s.job(t, Lasting)
	id := s.start(t, job)
	s.ready(t, id)
	quick := s.start(t, s.job(t, Quick))
	s.wait(t, quick)
	first := s.follow(t, quick)

	// A restarted agent has a new executor.
	s.executor = s.harness.New(t)
	found := s.list(t)
	if len(found) != 2 {
		t.Fatalf("a restarted agent finds %+v, want both jobs", found)
	}
	s.ready(t, id)
	if again := s.follow(t, quick); len(again) != len(first) {
		t.Errorf("a restarted agent reads the progress %v, want that of the first agent: %v", again, first)
	}
	if exit := s.wait(t, quick); exit.Code != runtime.CodeSucceeded {
		t.Errorf("a restarted agent gets the exit %+v of a job that succeeded", exit)
	}

	// Remove a job during a call of Wait.
	waiting := make(chan error, 1)
	go func() {
		_, err := s.executor.Wait(t.Context(), id)
		waiting <- err
	}()
	s.remove(t, id, longGrace)
	if err := within(t, waiting, "Wait to return after Remove"); err != nil && !errors.Is(err, runtime.ErrNoInstance) {
		t.Errorf("waiting for an instance during its removal returns %v", err)
	}
	s.wantLog(t, job, 1, "asked to end")
	s.wantGone(t, job)
}

func testConcurrentJobs(t *testing.T, s *fixture) {
	var jobs []*runtime.Job
	for i := range 8 {
		job := s.job(t, Quick)
		if !s.harness.Virtual {
			job.Definition.Raw = Definition(fmt.Sprintf("echo I am %s; pwd; echo mine > mine-%d; ls", job.ID, i)).Raw
		}
		jobs = append(jobs, job)
	}

	var group sync.WaitGroup
	for _, job := range jobs {
		group.Go(func() {
			id, err := s.tryStart(t.Context(), job)
			if err != nil {
				t.Errorf("start %s: %v", job.ID, err)
				return
			}
			exit, err := s.executor.Wait(t.Context(), id)
			if err != nil || exit.Code != runtime.CodeSucceeded {
				t.Errorf("%s ended with %+v (%v)", job.ID, exit, err)
			}
			if err := s.executor.Remove(t.Context(), id, 0); err != nil {
				t.Errorf("remove %s: %v", job.ID, err)
			}
		})
	}
	group.Wait()

	// Each has its own log and its own files.
	for i, job := range jobs {
		s.wantLog(t, job, 1, "I am "+job.ID)
		s.wantGone(t, job)
		text := s.service.Record(job.ID).Text(1)
		for j := range jobs {
			if j != i && strings.Contains(text, fmt.Sprintf("mine-%d\n", j)) {
				t.Errorf("%s sees a file of %s:\n%s", job.ID, jobs[j].ID, text)
			}
		}
	}
}

func testHandoff(t *testing.T, s *fixture) {
	// The definition has 5 MB of an unknown field before the steps.
	const end = "the-end-of-the-padding"
	padding := strings.Repeat("0123456789", 500_000) + end
	job := s.job(t, Lasting)
	job.Definition.Raw = append([]byte(`{"padding":"`+padding+`",`), job.Definition.Raw[1:]...)

	id := s.start(t, job)
	s.ready(t, id)
	if s.harness.Exposed == nil {
		return
	}
	exposed := s.harness.Exposed(t, job, id)
	if !strings.Contains(exposed, job.ID) {
		t.Fatalf("the harness exposes nothing with the id of the job, so this test proves nothing:\n%.2000s",
			exposed)
	}
	for _, hidden := range []string{job.Token.Reveal(), end} {
		if strings.Contains(exposed, hidden) {
			t.Errorf("%q can be read from outside", hidden)
		}
	}
}
