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

func followed(t *testing.T, s *stage) {
	job := s.job(t, Quick)
	id := s.start(t, job)
	live := s.follow(t, id)
	if exit := s.wait(t, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("the runner ended with %+v, want code %d", exit, runtime.CodeSucceeded)
	}
	afterwards := s.follow(t, id)
	if !slices.Equal(live, afterwards) {
		t.Errorf("followed while it ran: %v\nand afterwards: %v", live, afterwards)
	}
	for _, want := range []runtime.Progress{{Step: 0, Status: runtime.Succeeded}, {Step: 1, Status: runtime.Running}, {Step: 1, Status: runtime.Succeeded}} {
		if !slices.ContainsFunc(live, func(p runtime.Progress) bool { return p.Step == want.Step && p.Status == want.Status }) {
			t.Errorf("no progress says that step %d is %s: %v", want.Step, want.Status, live)
		}
	}
	s.told(t, job, 1, "quick work")
}

func waited(t *testing.T, s *stage) {
	job := s.job(t, Failing)
	id := s.start(t, job)
	for range 2 {
		if exit := s.wait(t, id); exit.Code != runtime.CodeFailed {
			t.Errorf("the runner ended with %+v, want code %d", exit, runtime.CodeFailed)
		}
	}
	s.told(t, job, 1, "failing work")
}

func unknown(t *testing.T, s *stage) {
	job := s.job(t, Quick)
	id := s.start(t, job)
	s.wait(t, id)
	s.remove(t, id, 0)
	for _, id := range []string{id, "../../etc", "", "no-such-environment"} {
		if _, err := s.executor.Wait(t.Context(), id); !errors.Is(err, runtime.ErrNoEnvironment) {
			t.Errorf("waiting for %q gives %v, want %v", id, err, runtime.ErrNoEnvironment)
		}
		if stream, err := s.executor.Follow(t.Context(), id); !errors.Is(err, runtime.ErrNoEnvironment) {
			if err == nil {
				_ = stream.Close()
			}
			t.Errorf("following %q gives %v, want %v", id, err, runtime.ErrNoEnvironment)
		}
		if err := s.executor.Remove(t.Context(), id, 0); err != nil {
			t.Errorf("removing %q again: %v", id, err)
		}
	}
}

func givenUp(t *testing.T, s *stage) {
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
	cancel()
	var failed error
	for range 2 {
		failed = errors.Join(failed, within(t, ended, "Follow and Wait to end with their context"))
	}
	if !errors.Is(failed, context.Canceled) {
		t.Errorf("waiting with a cancelled context gives %v, want %v", failed, context.Canceled)
	}
	if found := s.list(t); len(found) != 1 || !found[0].Running {
		t.Errorf("after nobody looks any more there is %+v, want the job running", found)
	}
}

func asked(t *testing.T, s *stage) {
	job := s.job(t, Lasting)
	id := s.start(t, job)
	s.ready(t, id)
	begin := time.Now()
	s.remove(t, id, 30*time.Second)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("removing a job that ends when it is asked took %v", took)
	}
	s.told(t, job, 1, "asked to end")
	s.gone(t, job)
}

func forced(t *testing.T, s *stage) {
	const grace = time.Second
	job := s.job(t, Stubborn)
	id := s.start(t, job)
	s.ready(t, id)
	begin := time.Now()
	s.remove(t, id, grace)
	if took := time.Since(begin); took < grace || took > grace+20*time.Second {
		t.Errorf("removing a job that does not listen took %v, want a little more than %v", took, grace)
	}
	s.gone(t, job)
}

func removed(t *testing.T, s *stage) {
	job := s.job(t, Parent)
	id := s.start(t, job)
	s.ready(t, id)
	if s.harness.Left != nil && len(s.harness.Left(t, job)) == 0 {
		t.Error("the harness sees nothing of a running job, and so cannot see what is left of it")
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
	s.gone(t, job)
}

func cancelled(t *testing.T, s *stage) {
	for _, delay := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		job := s.job(t, Stubborn)
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		id, err := s.tryStart(ctx, job)
		cancel()
		if err == nil {
			s.remove(t, id, 0) // it was faster
		}
		s.gone(t, job)
	}
}

func hopeless(t *testing.T, s *stage) {
	s.fails(t, s.job(t, Misset), false)
	if s.harness.Own {
		s.fails(t, s.job(t, Hopeless), true)
	}
}

// fails starts a job that cannot be started. Own is whether that is the job's own
// failure.
func (s *stage) fails(t *testing.T, job *runtime.Job, own bool) {
	t.Helper()
	s.service.Add(job)
	setup := runtime.NewSetup(job, s.service, Offer(job))
	_, err := s.executor.Start(t.Context(), job, setup)
	if err == nil || errors.Is(err, runtime.ErrJob) != own {
		t.Fatalf("starting what cannot be started gives %v; want an error that is the job's own: %v", err, own)
	}
	if err := setup.Fail(t.Context(), err); err != nil {
		t.Fatal(err)
	}
	step := s.service.Record(job.ID).Steps[0]
	if step.Status != runtime.Failed || len(step.Lines) < 2 {
		t.Errorf("the set-up is %q with the log %+v, want it failed, with what was tried and the reason", step.Status, step.Lines)
	}
	s.gone(t, job)
}

func checked(t *testing.T, s *stage) {
	checker, ok := s.executor.(runtime.Checker)
	if !ok {
		t.Fatalf("%T does not check whether jobs can be started", s.executor)
	}
	good, own, bad := s.job(t, Quick), s.job(t, Hopeless), s.job(t, Misset)
	if err := checker.Check(t.Context(), good.Tuning); err != nil {
		t.Errorf("checking settings that work gives %v", err)
	}
	if err := checker.Check(t.Context(), own.Tuning); err != nil {
		t.Errorf("checking the settings of a job that fails by itself gives %v", err)
	}
	err := checker.Check(t.Context(), bad.Tuning)
	if err == nil || strings.Contains(err.Error(), "\n") || errors.Is(err, runtime.ErrJob) {
		t.Errorf("checking settings that fail every job gives %v, want one line", err)
	}
	if err := checker.Check(t.Context(), good.Tuning); err != nil {
		t.Errorf("checking settings that work afterwards gives %v", err)
	}
	s.gone(t, good)
}

// ready blocks until the job has said "ready".
func (s *stage) ready(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := s.executor.Follow(ctx, id)
	if err != nil {
		t.Fatalf("follow: %v", err)
	}
	defer stream.Close()
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		var progress runtime.Progress
		if err := json.Unmarshal(lines.Bytes(), &progress); err != nil {
			t.Fatalf("the runner says %q: %v", lines.Text(), err)
		}
		if progress.Step == 1 && progress.Lines >= 2 {
			return
		}
	}
	t.Fatal("the job has ended, or a minute has passed, and it never said that it is ready")
}

// follow reads all progress to its end.
func (s *stage) follow(t *testing.T, id string) []runtime.Progress {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := s.executor.Follow(ctx, id)
	if err != nil {
		t.Fatalf("follow: %v", err)
	}
	defer stream.Close()
	var all []runtime.Progress
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		var progress runtime.Progress
		if err := json.Unmarshal(lines.Bytes(), &progress); err != nil {
			t.Fatalf("the runner says %q: %v", lines.Text(), err)
		}
		all = append(all, progress)
	}
	if ctx.Err() != nil {
		t.Fatalf("the progress has not ended within a minute: %v", all)
	}
	return all
}

func (s *stage) wait(t *testing.T, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := s.executor.Wait(ctx, id)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

func (s *stage) remove(t *testing.T, id string, grace time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.executor.Remove(ctx, id, grace); err != nil {
		t.Fatalf("remove: %v", err)
	}
}

func (s *stage) list(t *testing.T) []runtime.Found {
	t.Helper()
	found, err := s.executor.List(t.Context(), s.agent)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return found
}

// told sees to it that the step's log at the service has the text.
func (s *stage) told(t *testing.T, job *runtime.Job, step int, text string) {
	t.Helper()
	if s.harness.Virtual {
		return
	}
	s.service.Await(t, job.ID, text, func(r Record) bool { return contains(r, step, text) })
}

// gone sees to it that nothing is left of the job.
func (s *stage) gone(t *testing.T, job *runtime.Job) {
	t.Helper()
	for _, found := range s.list(t) {
		if found.Job == job.ID {
			t.Errorf("%s is still listed: %+v", job.ID, found)
		}
	}
	if s.harness.Left != nil {
		if left := s.harness.Left(t, job); len(left) > 0 {
			t.Errorf("of %s is left: %q", job.ID, left)
		}
	}
}

// within receives one result, which must come within a minute.
func within(t *testing.T, results <-chan error, what string) error {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	select {
	case err := <-results:
		return err
	case <-limit.C:
		t.Fatalf("waited a minute for %s", what)
		return nil
	}
}
