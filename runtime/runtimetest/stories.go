package runtimetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

func testFollow(t *testing.T, s *fixture) {
	job := s.job(t, Quick)
	id := s.start(t, job)
	live := s.follow(t, id)
	if exit := s.wait(t, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("the runner ended with %+v, want code %d", exit, runtime.CodeSucceeded)
	}
	afterwards := s.follow(t, id)
	if !slices.Equal(live, afterwards) {
		t.Errorf("the progress during the job is\n%v\nand after its end\n%v\nwant the same", live, afterwards)
	}
	// The runner may leave out earlier progress, while its output is slow.
	if len(live) == 0 || live[len(live)-1].Step != 1 || live[len(live)-1].Status != runtime.Succeeded {
		t.Errorf("the last progress does not report step 1 as succeeded: %v", live)
	}
	s.wantLog(t, job, 1, "quick work")
}

func testWait(t *testing.T, s *fixture) {
	job := s.job(t, Failing)
	id := s.start(t, job)
	for range 2 {
		if exit := s.wait(t, id); exit.Code != runtime.CodeFailed {
			t.Errorf("the runner ended with %+v, want code %d", exit, runtime.CodeFailed)
		}
	}
	s.wantLog(t, job, 1, "failing work")
}

func testUnknownID(t *testing.T, s *fixture) {
	job := s.job(t, Quick)
	id := s.start(t, job)
	s.wait(t, id)
	s.remove(t, id, 0)
	for _, id := range []string{id, "../../etc", "", "no-such-environment"} {
		if _, err := s.executor.Wait(t.Context(), id); !errors.Is(err, runtime.ErrNoInstance) {
			t.Errorf("waiting for %q returns %v, want %v", id, err, runtime.ErrNoInstance)
		}
		if stream, err := s.executor.Follow(t.Context(), id); !errors.Is(err, runtime.ErrNoInstance) {
			if err == nil {
				_ = stream.Close()
			}
			t.Errorf("following %q returns %v, want %v", id, err, runtime.ErrNoInstance)
		}
		if err := s.executor.Remove(t.Context(), id, 0); err != nil {
			t.Errorf("removing %q again: %v", id, err)
		}
	}
}

func testContexts(t *testing.T, s *fixture) {
	job := s.job(t, Lasting)
	id := s.start(t, job)
	s.ready(t, id)

	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.executor.Follow(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	ended := make(chan error, 2)
	go func() {
		for lines := bufio.NewScanner(stream); lines.Scan(); {
		}
		ended <- nil
	}()
	go func() {
		_, err := s.executor.Wait(ctx, id)
		ended <- err
	}()

	// Cancel both. The job continues.
	cancel()
	var failed error
	for range 2 {
		failed = errors.Join(failed, within(t, ended, "Follow and Wait to end with their context"))
	}
	if !errors.Is(failed, context.Canceled) {
		t.Errorf("waiting with a cancelled context returns %v, want %v", failed, context.Canceled)
	}
	if found := s.list(t); len(found) != 1 || !found[0].Running {
		t.Errorf("after the contexts ended List returns %+v, want the running job", found)
	}
}

func testInterrupt(t *testing.T, s *fixture) {
	interrupter, ok := s.executor.(runtime.Interrupter)
	if !ok {
		t.Skip("this executor cannot send an interrupt")
	}
	job := s.job(t, Pulumi)
	job.Tuning.CancelGrace = longGrace
	id := s.start(t, job)
	s.ready(t, id)

	// Interrupt it three times. The runner then waits for the next signal.
	for range 3 {
		if err := interrupter.Interrupt(t.Context(), id); err != nil {
			t.Fatalf("interrupt: %v", err)
		}
	}
	s.wantLog(t, job, 1, "signals: 1\n")
	s.wantLog(t, job, 1, "pulumi ended by itself ")
	s.remove(t, id, longGrace)
	s.wantLog(t, job, 1, "Error: ")
	s.wantGone(t, job)
	if err := interrupter.Interrupt(t.Context(), id); err != nil && !errors.Is(err, runtime.ErrNoInstance) {
		t.Errorf("interrupt an instance that was removed: %v", err)
	}
}

func testStopStages(t *testing.T, s *fixture) {
	job := s.job(t, Pulumi)
	job.Tuning.CancelGrace = longGrace
	id := s.start(t, job)
	s.ready(t, id)
	s.remove(t, id, job.Tuning.CancelGrace+runtime.StopGrace)
	s.wantLog(t, job, 1, "Interrupting ")
	s.wantLog(t, job, 1, "signals: 1\n")
	s.wantGone(t, job)
}

func testRemoveWithGrace(t *testing.T, s *fixture) {
	job := s.job(t, Lasting)
	id := s.start(t, job)
	s.ready(t, id)
	s.remove(t, id, longGrace)
	s.wantLog(t, job, 1, "asked to end")
	s.wantGone(t, job)
}

func testRemoveAfterGrace(t *testing.T, s *fixture) {
	const grace = time.Second
	job := s.job(t, Stubborn)
	id := s.start(t, job)
	s.ready(t, id)
	begin := time.Now()
	s.remove(t, id, grace)
	if took := time.Since(begin); took < grace {
		t.Errorf("removing a job that ignores TERM took %v, want more than %v", took, grace)
	}
	s.wantGone(t, job)
}

func testRemove(t *testing.T, s *fixture) {
	job := s.job(t, Parent)
	id := s.start(t, job)
	s.ready(t, id)
	if s.harness.Leftovers != nil && len(s.harness.Leftovers(t, job)) == 0 {
		t.Error("the harness finds nothing of a running job, so it cannot find leftovers")
	}
	removals := make(chan error, 2)
	for range 2 {
		go func() { removals <- s.executor.Remove(t.Context(), id, 0) }()
	}
	for range 2 {
		if err := within(t, removals, "Remove to return"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	s.remove(t, id, 0)
	s.wantGone(t, job)
}

func testCancelledStart(t *testing.T, s *fixture) {
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond,
		100 * time.Millisecond} {
		job := s.job(t, Stubborn)
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		id, err := s.tryStart(ctx, job)
		cancel()
		if err == nil {
			s.remove(t, id, 0) // it started in time
		}
		s.wantGone(t, job)
	}
}

func testFailedStart(t *testing.T, s *fixture) {
	s.wantStartError(t, s.job(t, Misconfigured), false)
	if s.harness.BadJobs {
		s.wantStartError(t, s.job(t, BadJob), true)
	}
}

// wantStartError starts a job that cannot be started, and checks that Start fails. Own is
// whether the error must be the job's own fault.
func (s *fixture) wantStartError(t *testing.T, job *runtime.Job, own bool) {
	t.Helper()
	s.service.Add(job)
	setup := runtime.NewSetup(job, s.service, BaseHandoff(job))
	_, err := s.executor.Start(t.Context(), job, setup)
	if err == nil || errors.Is(err, runtime.ErrJobFault) != own {
		t.Fatalf("a start that must fail returns %v; want an error that wraps ErrJobFault: %v", err, own)
	}
	if err := setup.Fail(t.Context(), err); err != nil {
		t.Fatal(err)
	}
	step := s.service.Record(job.ID).Steps[0]
	if step.Status != runtime.Failed || len(step.Lines) < 2 {
		t.Errorf("the setup is %q with the log %+v, want failed with at least two lines", step.Status,
			step.Lines)
	}
	s.wantGone(t, job)
}

func testCheck(t *testing.T, s *fixture) {
	good, own, bad := s.job(t, Quick), s.job(t, BadJob), s.job(t, Misconfigured)
	if err := s.executor.Check(t.Context(), good.Tuning); err != nil {
		t.Errorf("checking settings that work returns %v", err)
	}
	if err := s.executor.Check(t.Context(), own.Tuning); err != nil {
		t.Errorf("checking the settings of a bad job returns %v", err)
	}
	err := s.executor.Check(t.Context(), bad.Tuning)
	if err == nil || strings.Contains(err.Error(), "\n") || errors.Is(err, runtime.ErrJobFault) {
		t.Errorf("checking settings that fail every job returns %v, want one line", err)
	}
	if err := s.executor.Check(t.Context(), good.Tuning); err != nil {
		t.Errorf("checking settings that work afterwards returns %v", err)
	}
	s.wantGone(t, good)
}

// ready blocks until the log of step 1 has two lines: the script, and "ready" (see scripts).
func (s *fixture) ready(t *testing.T, id string) {
	t.Helper()
	isReady := func(p runtime.Progress) bool { return p.Step == 1 && p.Lines >= 2 }
	if all := s.followUntil(t, id, isReady); len(all) == 0 || !isReady(all[len(all)-1]) {
		t.Fatal("the job has not printed \"ready\" before its end")
	}
}

// follow reads all progress to its end.
func (s *fixture) follow(t *testing.T, id string) []runtime.Progress {
	t.Helper()
	return s.followUntil(t, id, func(runtime.Progress) bool { return false })
}

// followUntil reads the progress up to the first for which last returns true, or to its end.
func (s *fixture) followUntil(t *testing.T, id string, last func(runtime.Progress) bool) (all []runtime.Progress) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	stream, err := s.executor.Follow(ctx, id)
	if err != nil {
		t.Fatalf("follow: %v", err)
	}
	defer stream.Close()
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		var progress runtime.Progress
		if err := json.Unmarshal(lines.Bytes(), &progress); err != nil {
			t.Fatalf("the runner's output is %q: %v", lines.Text(), err)
		}
		if all = append(all, progress); last(progress) {
			return all
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("the progress has not ended within %v: %v", limit, all)
	}
	return all
}

func (s *fixture) wait(t *testing.T, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	exit, err := s.executor.Wait(ctx, id)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

func (s *fixture) remove(t *testing.T, id string, grace time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := s.executor.Remove(ctx, id, grace); err != nil {
		t.Fatalf("remove: %v", err)
	}
}

func (s *fixture) list(t *testing.T) []runtime.Instance {
	t.Helper()
	found, err := s.executor.List(t.Context(), s.agent)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return found
}

// wantLog checks that the log of the step at the service contains the text.
func (s *fixture) wantLog(t *testing.T, job *runtime.Job, step int, text string) {
	t.Helper()
	if s.harness.Virtual {
		return
	}
	s.service.Await(t, job.ID, text, func(r Record) bool { return strings.Contains(r.Text(step), text) })
}

// wantGone checks that nothing is left of the job.
func (s *fixture) wantGone(t *testing.T, job *runtime.Job) {
	t.Helper()
	for _, found := range s.list(t) {
		if found.Job == job.ID {
			t.Errorf("%s is still listed: %+v", job.ID, found)
		}
	}
	if s.harness.Leftovers != nil {
		if left := s.harness.Leftovers(t, job); len(left) > 0 {
			t.Errorf("%s has leftovers: %q", job.ID, left)
		}
	}
}

// within returns one result, and fails the test after limit without one.
func within(t *testing.T, results <-chan error, what string) error {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-results:
		return err
	case <-timer.C:
		t.Fatalf("waited %v for %s", limit, what)
		return nil
	}
}
