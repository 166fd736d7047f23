package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// stage is one pool between a fake service and a fake engine, in a bubble of
// virtual time.
type stage struct {
	t      testing.TB
	cloud  *runtimetest.Cloud
	engine *runtimetest.Executor
	slots  *runtime.Slots
	closed int // times that the pool let its parts go
	pool   *runtime.Pool
	log    *journal
	stop   context.CancelCauseFunc
	ended  chan error
}

// journal is a log that may be read while a pool writes it.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// spec is a pool with the documented defaults.
func spec(edits ...func(*runtime.Tuning)) runtime.PoolSpec {
	s := runtime.PoolSpec{
		Name:       "default",
		Identity:   runtime.Identity{Service: "http://service", Target: "pretended"},
		Generation: 7,
		Tuning: runtime.Tuning{
			Kinds: []runtime.Kind{runtime.Deployment}, MaxJobs: 1,
			PollingInterval: time.Minute, StatusInterval: 30 * time.Second,
			RequestTimeout: 30 * time.Second,
		},
	}
	for _, edit := range edits {
		edit(&s.Tuning)
	}
	return s
}

// job is a deployment as the service hands it out.
func job(id string) runtime.Job {
	return runtime.Job{ID: id, Kind: runtime.Deployment, Subject: "deployment-of-" + id, Token: secret.New("token-of-" + id)}
}

func most(n int) func(*runtime.Tuning) { return func(t *runtime.Tuning) { t.MaxJobs = n } }

// play runs a story in a bubble. The pool is made, and runs once the story says
// start; at the story's end it must end when it is stopped.
func play(t *testing.T, s runtime.PoolSpec, story func(t *testing.T, st *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := newStage(t, s)
		story(t, st)
		st.stop(errors.New("the story is over"))
		st.end()
	})
}

func newStage(t testing.TB, s runtime.PoolSpec) *stage { return newStageWith(t, s, nil) }

// newStageWith makes a stage whose pool shares slots with others.
func newStageWith(t testing.TB, s runtime.PoolSpec, slots *runtime.Slots) *stage {
	st := &stage{t: t, cloud: runtimetest.NewCloud(), engine: runtimetest.NewExecutor(), slots: slots, log: &journal{}, ended: make(chan error, 1)}
	st.pool = runtime.NewPool(s, runtime.Parts{
		Cloud: st.cloud, Executor: st.engine, Slots: slots, Close: func() { st.closed++ }, Agent: "agent-1", UserAgent: "test",
		Environ: func(name string) (string, bool) {
			value, ok := map[string]string{"DOCKER_HOST": "unix:///engine", "AWS_REGION": "mars", "HIDDEN": "x"}[name]
			return value, ok
		},
		Log: slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return st
}

func (st *stage) start() {
	ctx, stop := context.WithCancelCause(context.Background())
	st.stop = stop
	go func() { st.ended <- st.pool.Run(ctx) }()
	synctest.Wait()
}

// wait lets virtual time pass, and everything that it brings happen.
func wait(span time.Duration) {
	time.Sleep(span) // in a bubble: virtual
	synctest.Wait()
}

// end waits for Run to return, with a limit far beyond any that is kept.
func (st *stage) end() error {
	st.t.Helper()
	select {
	case err := <-st.ended:
		st.ended <- err
		return err
	case <-time.After(24 * time.Hour):
		st.t.Fatal("the pool does not end")
		return nil
	}
}

func (st *stage) wantDeeds(job string, want ...runtimetest.Deed) {
	st.t.Helper()
	if got := st.engine.Deeds(job); !slices.Equal(got, want) {
		st.t.Errorf("what was done to job %s: %v, want %v", job, got, want)
	}
}

func (st *stage) wantStep(job string, step int, status runtime.Status, log string) {
	st.t.Helper()
	got, text := st.cloud.Step(job, step)
	if got != status || !strings.Contains(text, log) {
		st.t.Errorf("step %d of job %s is %s with the log %q; want %s and %q in the log", step, job, got, text, status, log)
	}
}

func TestAJobIsClaimedStartedRemovedAndTheNextAskedForAtOnce(t *testing.T) {
	play(t, spec(func(t *runtime.Tuning) { t.Place.Forward = []string{"AWS_REGION", "NOT_SET"} }), func(t *testing.T, st *stage) {
		st.cloud.Queue("a", "b")
		st.start()
		wait(2500 * time.Millisecond) // each takes a second
		for _, job := range []string{"a", "b"} {
			st.wantDeeds(job, "start", "started", "remove", "removed")
			st.wantStep(job, 0, runtime.Running, "pretended environment") // the runner reports the rest
		}
		if calls := st.cloud.Calls(runtimetest.Claim); len(calls) != 3 || calls[2].Sub(calls[0]) > 2*time.Second {
			t.Errorf("the service was asked at %v; want a question right after each job", calls)
		}
		h := st.engine.Handover("a")
		if h.Token != "token-of-a" || h.Forward["AWS_REGION"] != "mars" || h.Forward["DOCKER_HOST"] != "unix:///engine" || len(h.Forward) != 2 {
			t.Errorf("the runner is handed %+v forward; want AWS_REGION and DOCKER_HOST only", h.Forward)
		}
		if strings.Contains(st.log.String(), "token-of-") {
			t.Error("the log shows a job's token")
		}
	})
}

func TestAPoolLetsItsPartsGoOnceWhenNothingNeedsThemAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStage(t, spec())
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour, OnTerm: runtime.Exit{Code: 143}})
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		if st.closed != 0 {
			t.Error("they were let go while a job runs")
		}
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		if present := st.engine.Present(); st.closed != 1 || len(present) > 0 {
			t.Errorf("they were let go %d times, with %v left", st.closed, present)
		}
	})
}

func TestAJobIsHandedTheCertificatesOfItsClaim(t *testing.T) {
	trusting := func(ca string) runtime.PoolSpec { return spec(most(2), func(t *runtime.Tuning) { t.CA = ca }) }
	play(t, trusting("first"), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
		st.cloud.Queue("a")
		st.start()
		st.pool.Tune(trusting("second"))
		st.cloud.Queue("b")
		wait(2 * time.Minute)
		if a, b := st.engine.Handover("a"), st.engine.Handover("b"); a.CA != "first" || b.CA != "second" {
			t.Errorf("the jobs are handed %q and %q", a.CA, b.CA)
		}
	})
}

func TestNoMoreJobsRunThanThePoolMayHold(t *testing.T) {
	play(t, spec(most(4)), func(t *testing.T, st *stage) {
		for i := range 20 {
			st.cloud.Queue(fmt.Sprint("job-", i))
		}
		st.start()
		if running := len(st.engine.Present()); running != 4 {
			t.Errorf("%d jobs run at once, want 4", running)
		}
		wait(6 * time.Second)
		if st.engine.Peak() != 4 || len(st.cloud.Queued()) != 0 || len(st.engine.Present()) != 0 {
			t.Errorf("peak %d, %d queued, %v left; want 4, none, none", st.engine.Peak(), len(st.cloud.Queued()), st.engine.Present())
		}
	})
}

func TestADrainedPoolFinishesWhatItHoldsAndClaimsNothing(t *testing.T) {
	play(t, spec(most(2)), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
		st.cloud.Queue("a", "b", "c")
		st.start()
		st.pool.Drain()
		wait(time.Minute)
		if state := st.pool.State(); state.Phase != runtime.PoolDraining || len(state.Jobs) != 2 {
			t.Errorf("the pool is %s with %d jobs, want draining with 2", state.Phase, len(state.Jobs))
		}
		if err := st.end(); err != nil {
			t.Errorf("a drained pool ended with %v", err)
		}
		if left := st.cloud.Queued(); !slices.Equal(left, []string{"c"}) {
			t.Errorf("still queued: %v, want c", left)
		}
		st.wantDeeds("a", "start", "started", "remove", "removed")
	})
}

func TestADrainingPoolThatIsTunedIsRevived(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
		st.cloud.Queue("a", "b")
		st.start()
		st.pool.Drain()
		wait(time.Minute)
		st.pool.Tune(spec())
		wait(2 * time.Hour)
		st.wantDeeds("b", "start", "started", "remove", "removed")
	})
}

func TestAClaimInFlightWhenThePoolIsDrainedIsCarriedOut(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.cloud.Queue("a")
		st.start()
		st.pool.Drain()
		wait(10 * time.Second)
		release()
		if err := st.end(); err != nil {
			t.Error(err)
		}
		st.wantDeeds("a", "start", "started", "remove", "removed")
		if lost := st.cloud.Lost(); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
	})
}

func TestAClaimInFlightWhenThePoolIsStoppedIsReported(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		release := st.cloud.Hang(runtimetest.Claim)
		st.cloud.Queue("a")
		st.start()
		st.stop(errors.New("the agent is stopping"))
		wait(time.Second)
		release()
		_ = st.end()
		st.wantStep("a", 0, runtime.Failed, "Error: the agent is stopping")
		if lost := st.cloud.Lost(); len(lost) > 0 {
			t.Errorf("lost: %v", lost)
		}
	})
}

func TestAStoppedPoolStopsItsJobsInOrder(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, Ending: 5 * time.Second, OnTerm: runtime.Exit{Code: runtime.CodeFailed}})
		st.cloud.Queue("a")
		st.start()
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		if deeds := st.engine.Deeds("a"); !slices.Contains(deeds, "term") || slices.Contains(deeds, "kill") || len(st.engine.Present()) > 0 {
			t.Errorf("done to the job: %v, left: %v; want a TERM, no KILL, nothing left", deeds, st.engine.Present())
		}
		st.wantStep("a", 1, runtime.NotStarted, "") // the runner has the word
	})
}

func TestAJobThatIgnoresTermIsKilledAndItsStepReported(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever})
		st.cloud.Queue("a")
		st.start()
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		if deeds := st.engine.Deeds("a"); !slices.Contains(deeds, "kill") {
			t.Errorf("done to the job: %v, want a KILL", deeds)
		}
		st.wantStep("a", 1, runtime.Failed, "ended without a word")
	})
}

func TestAHungEngineDoesNotHoldAStoppedPoolForLong(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, Hung: true})
		st.cloud.Queue("a")
		st.start()
		wait(time.Hour)
		begin := time.Now()
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		if took := time.Since(begin); took > 2*time.Minute+5*time.Second {
			t.Errorf("the pool took %s to stop", took)
		}
		if reports := st.cloud.Reports("a"); len(reports) != 1 {
			t.Errorf("of a job that may still run was reported %+v", reports[1:])
		}
		if !strings.Contains(st.log.String(), "left running") {
			t.Errorf("the log does not say what became of the job:\n%s", st.log)
		}
	})
}

func TestAnEngineThatHelpsInTheEndStopsTheJobInOrder(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		busy := errors.New("the engine is busy")
		st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever, RemoveErrors: []error{busy, busy, busy}})
		st.cloud.Queue("a")
		st.start()
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		st.wantStep("a", 1, runtime.Failed, "ended without a word")
		if present := st.engine.Present(); len(present) > 0 {
			t.Errorf("left: %v", present)
		}
	})
}

func TestAJobThatCannotBeEndedKeepsItsPlace(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		var busy []error
		for range 20 {
			busy = append(busy, errors.New("the engine is busy"))
		}
		st.engine.Script("a", runtimetest.Script{Running: runtimetest.Forever, RemoveErrors: busy, OnTerm: runtime.Exit{Code: 143}})
		st.cloud.Queue("a", "b")
		st.start()
		st.cloud.Answer("a", runtime.Ended)
		wait(5 * time.Minute)
		if state := st.pool.State(); len(state.Jobs) != 1 || state.Jobs[0].Phase != runtime.Stopping {
			t.Errorf("the pool holds %+v, want the job that still runs", state.Jobs)
		}
		if calls := st.cloud.Calls(runtimetest.Claim); len(calls) != 1 {
			t.Errorf("the service was asked for another job at %v", calls[1:])
		}
		wait(30 * time.Minute)
		st.wantDeeds("b", "start", "started", "remove", "removed")
		if warnings := strings.Count(st.log.String(), "the job cannot be ended"); warnings != 1 {
			t.Errorf("it is said %d times that the job cannot be ended", warnings)
		}
	})
}

func TestAnEndThatIsKnownIsReportedEvenWhenNothingCanBeRemoved(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Minute, Exit: runtime.Exit{Code: 137, Reason: "killed"}, Hung: true})
		st.cloud.Queue("a")
		st.start()
		wait(50 * time.Second)
		st.stop(errors.New("the agent is stopping"))
		_ = st.end()
		st.wantStep("a", 1, runtime.Failed, "killed")
	})
}

func TestACancelledJobIsStoppedAndNotReported(t *testing.T) {
	for _, verdict := range []runtime.Verdict{runtime.Ended, runtime.Gone} {
		play(t, spec(), func(t *testing.T, st *stage) {
			st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever, OnTerm: runtime.Exit{Code: 143}})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.cloud.Answer("a", verdict)
			wait(31 * time.Second)
			if present := st.engine.Present(); len(present) > 0 {
				t.Errorf("%s: still there one status interval later: %v", verdict, present)
			}
			if reports := st.cloud.Reports("a"); len(reports) != 1 || reports[0].Step != 0 {
				t.Errorf("%s: the agent reported %+v, want nothing after the set-up", verdict, reports)
			}
		})
	}
}

func TestAJobThatIsCancelledWhileItsImageIsPulledIsStopped(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Starting: time.Hour})
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		st.cloud.Answer("a", runtime.Ended)
		wait(31 * time.Second)
		st.wantDeeds("a", "start", "no start")
		if state := st.pool.State(); len(state.Jobs) > 0 {
			t.Errorf("the pool still holds %v", state.Jobs)
		}
	})
}

func TestARunnerThatHasJustToldAFailureMayEndByItself(t *testing.T) {
	play(t, spec(func(t *runtime.Tuning) { t.StatusInterval = 5 * time.Second }), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{
			Running: 45 * time.Second, Exit: runtime.Exit{Code: runtime.CodeFailed},
			Progress: []runtimetest.Beat{{After: 20 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Failed}}},
		})
		st.cloud.Queue("a")
		st.start()
		wait(25 * time.Second)
		st.cloud.Answer("a", runtime.Ended) // because of that failure
		wait(time.Minute)
		st.wantDeeds("a", "start", "started", "remove", "removed") // and no term
	})
}

func TestARunnerThatDoesNotEndAfterItsLastSuccessIsStopped(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: runtimetest.Forever})
		st.cloud.Queue("a")
		st.start()
		st.cloud.Answer("a", runtime.Finishing)
		wait(80 * time.Second)
		if len(st.engine.Present()) != 1 {
			t.Error("the runner did not get a minute to end")
		}
		wait(30 * time.Second)
		if len(st.engine.Present()) != 0 {
			t.Error("the runner was left to linger")
		}
	})
}

func TestDoubtNeverStopsAJob(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
		st.cloud.Queue("a")
		st.cloud.Fail(runtimetest.Wanted, 1000, errors.New("connection refused"))
		st.start()
		wait(2 * time.Hour)
		st.wantDeeds("a", "start", "started", "remove", "removed")
	})
}

func TestALongJobIsNoStandstillWhileTheServiceGivesNoAnswerAboutIt(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: 3 * time.Hour})
		st.cloud.Queue("a")
		st.cloud.Fail(runtimetest.Wanted, 1000, errors.New("the service is broken"))
		st.start()
		for range 100 {
			wait(time.Minute)
			if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
				t.Errorf("the pool counts as standing still for %s while its job runs", still)
				return
			}
		}
	})
}

func TestAnEnvironmentThatCannotBeMadeIsTheJobsFailure(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Script("a", runtimetest.Script{Fail: fmt.Errorf("%w: no such image: example/none", runtime.ErrJob)})
		st.cloud.Queue("a", "b")
		st.start()
		wait(2 * time.Second)
		st.wantStep("a", 0, runtime.Failed, "Error: cannot be started: no such image: example/none\n")
		st.wantDeeds("b", "start", "started", "remove", "removed")
	})
}

func TestAnEngineThatIsGoneDoesNotFailTheWholeQueue(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Fail: errors.New("the engine is gone")})
		for i := range 50 {
			st.cloud.Queue(fmt.Sprint("job-", i))
		}
		st.start()
		wait(time.Minute)
		if failed := 50 - len(st.cloud.Queued()); failed != 5 {
			t.Errorf("%d jobs were claimed and failed in a minute, want two, and one each after 5 s, 10 s and 20 s", failed)
		}
		if state := st.pool.State(); state.Phase != runtime.PoolPaused || state.Why == "" {
			t.Errorf("the pool is %s (%s), want paused with a reason", state.Phase, state.Why)
		}
	})
}

func TestADefinitionThatCannotBeFetchedIsTheJobsFailure(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.cloud.Fail(runtimetest.Define, 1, errors.New("500 internal server error"))
		st.cloud.Queue("a")
		st.start()
		st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: 500 internal server error")
		st.wantDeeds("a")
	})
}

func TestARunnerThatDiesWithoutAWordIsSpokenForByTheAgent(t *testing.T) {
	died := runtime.Exit{Code: 137, Reason: "out of memory"}
	for name, c := range map[string]struct {
		progress []runtimetest.Beat
		step     int
		offset   int
		reports  int
	}{
		"in its first step": {[]runtimetest.Beat{
			{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
			{Progress: runtime.Progress{Step: 1, Status: runtime.Running}}, {Progress: runtime.Progress{Step: 1, Lines: 12}},
		}, 1, 12, 2},
		"between two steps": {[]runtimetest.Beat{{Progress: runtime.Progress{Step: 0, Lines: 3, Status: runtime.Succeeded}}}, 1, 0, 3},
		"before a word":     {nil, 0, 1, 2},
		"after its last":    {[]runtimetest.Beat{{Progress: runtime.Progress{Step: 1, Status: runtime.Succeeded}}}, 1, 0, 1},
		"after a failure":   {[]runtimetest.Beat{{Progress: runtime.Progress{Step: 1, Status: runtime.Failed}}}, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, spec(), func(t *testing.T, st *stage) {
				st.engine.Otherwise(runtimetest.Script{Running: time.Second, Exit: died, Progress: c.progress, Mute: c.progress == nil})
				st.cloud.Queue("a")
				st.start()
				wait(2 * time.Second)
				reports := st.cloud.Reports("a")
				if len(reports) != c.reports {
					t.Fatalf("the agent reported %+v, want %d reports", reports, c.reports)
				}
				if c.reports == 1 {
					return
				}
				last := reports[len(reports)-1]
				if last.Step != c.step || last.Offset != c.offset || last.Status != runtime.Failed || !strings.Contains(last.Lines[0].Text, "out of memory (exit code 137)") {
					t.Errorf("the last report is %+v, want step %d failed at line %d for lack of memory", last, c.step, c.offset)
				}
			})
		})
	}
}

func TestAStreamThatBreaksOffIsTakenUpAgain(t *testing.T) {
	progress := []runtimetest.Beat{
		{After: 0, Progress: runtime.Progress{Step: 0, Lines: 1, Status: runtime.Succeeded}},
		{After: time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
		{After: time.Hour, Progress: runtime.Progress{Step: 1, Lines: 8, Status: runtime.Succeeded}},
		{After: time.Hour, Progress: runtime.Progress{Step: 2, Status: runtime.Running}},
		{After: 2 * time.Hour, Progress: runtime.Progress{Step: 2, Lines: 5}},
	}
	for name, script := range map[string]runtimetest.Script{
		"with an error":             {Breaks: []time.Duration{10 * time.Minute, 90 * time.Minute}, BreakErr: io.ErrUnexpectedEOF},
		"as if it were at its end":  {Breaks: []time.Duration{10 * time.Minute, 90 * time.Minute}},
		"just before the job's end": {Breaks: []time.Duration{3*time.Hour - 10*time.Millisecond}, BreakErr: io.ErrUnexpectedEOF},
		"before it begins":          {Breaks: []time.Duration{70 * time.Minute}, FollowErr: errors.New("the engine is gone")},
	} {
		script.Running, script.Exit, script.Progress = 3*time.Hour, runtime.Exit{Code: 137, Reason: "killed"}, progress
		play(t, spec(), func(t *testing.T, st *stage) {
			st.engine.Script("a", script)
			st.cloud.Add(job("a"), runtimetest.Definition("one", "two", "three"))
			st.start()
			wait(4 * time.Hour)
			st.wantStep("a", 1, runtime.NotStarted, "") // the runner has told it
			st.wantStep("a", 2, runtime.Failed, "killed")
			st.wantStep("a", 3, runtime.NotStarted, "")
			if reports := st.cloud.Reports("a"); reports[len(reports)-1].Offset != 5 {
				t.Errorf("%s: the last line is put at %d, want it behind the five that the service has", name, reports[len(reports)-1].Offset)
			}
			if warnings := strings.Count(st.log.String(), "follow the runner"); warnings > 3 {
				t.Errorf("%s: the log says %d times that the runner cannot be followed", name, warnings)
			}
		})
	}
}

func TestAStreamThatIsTakenUpAgainNeverTurnsTheClockBack(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Script("a", runtimetest.Script{
			Running: time.Hour, Exit: runtime.Exit{Code: 137},
			Progress: []runtimetest.Beat{
				{After: 0, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
				{After: 0, Progress: runtime.Progress{Step: 2, Lines: 4, Status: runtime.Running}},
				{After: 0, Progress: runtime.Progress{Step: 1, Lines: 9, Status: runtime.Failed}},
				{After: 0, Progress: runtime.Progress{Step: 2, Lines: 3}},
			},
		})
		st.cloud.Add(job("a"), runtimetest.Definition("one", "two"))
		st.start()
		wait(2 * time.Hour)
		st.wantStep("a", 2, runtime.Failed, "ended without a word")
	})
}

func TestALongSetUpGivesSignsOfLife(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Starting: 20 * time.Minute, Running: time.Second})
		st.cloud.Queue("a")
		st.start()
		wait(21 * time.Minute)
		if reports := st.cloud.Reports("a"); len(reports) < 20*2-1 {
			t.Errorf("%d signs of life in 20 minutes of set-up, want one every 30 s", len(reports))
		}
		before := len(st.cloud.Reports("a"))
		wait(time.Hour)
		if after := len(st.cloud.Reports("a")); after != before {
			t.Errorf("%d more signs of life after the set-up was over", after-before)
		}
	})
}

func TestRetryAfterSetsTheNextQuestionUnlessOverridden(t *testing.T) {
	for _, override := range []bool{false, true} {
		s := broken(func(t *runtime.Tuning) { t.PollingOverride = override })
		play(t, s, func(t *testing.T, st *stage) {
			service := answering("204 No Content\r\nRetry-After: 600")
			st.reach(s, service)
			state := st.pool.State()
			wait(9 * time.Minute)
			calls := service.dials.Load()
			switch {
			case override && calls < 8:
				t.Errorf("overridden: %d questions in 9 minutes, want one a minute", calls)
			case !override && calls != 1:
				t.Errorf("%d questions in 9 minutes, want 1", calls)
			case !override && (state.Phase != runtime.PoolPaused || state.Why == ""):
				t.Errorf("the pool is %s (%s), want paused with a reason", state.Phase, state.Why)
			}
			wait(2 * time.Minute)
			if calls := service.dials.Load(); !override && calls != 2 {
				t.Errorf("%d questions in 11 minutes, want 2", calls)
			}
		})
	}
}

func TestAPauseIsKeptAlsoWhenAJobEnds(t *testing.T) {
	play(t, spec(most(3)), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: 30 * time.Second})
		st.engine.Script("long", runtimetest.Script{Running: 5 * time.Minute})
		st.cloud.Queue("a", "long")
		st.start()
		st.cloud.Hold(runtime.NextPoll{At: time.Now().Add(10 * time.Minute), Reason: "circuit breaker open"})
		wait(70 * time.Second)
		calls := len(st.cloud.Calls(runtimetest.Claim))
		st.cloud.Queue("b")
		wait(8 * time.Minute)
		if now := len(st.cloud.Calls(runtimetest.Claim)); now != calls {
			t.Errorf("%d questions during the pause", now-calls)
		}
		if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
			t.Errorf("a pause on purpose counts as %s without progress", still)
		}
		wait(3 * time.Minute)
		st.wantDeeds("b", "start", "started", "remove", "removed")
	})
}

func TestFailedQuestionsAreRepeatedAtTheIntervalAndSaidOnce(t *testing.T) {
	s := broken(func(t *runtime.Tuning) { t.BreakerFailures = 100 })
	play(t, s, func(t *testing.T, st *stage) {
		service := answering("")
		st.reach(s, service)
		wait(4 * time.Minute)
		if polls := service.dials.Load(); polls < 4 || polls > 5 {
			t.Errorf("%d polls in four minutes, want one a minute", polls)
		}
		if loud := strings.Count(st.log.String(), "level=WARN"); loud != 1 {
			t.Errorf("%d warnings for one row of failures:\n%s", loud, st.log)
		}
		if still := st.pool.State().Overdue(time.Now()); still > time.Minute {
			t.Errorf("failed questions count as %s without progress", still)
		}
		service.answer.Store("204 No Content")
		wait(2 * time.Minute)
		if !strings.Contains(st.log.String(), "polling resumed") {
			t.Errorf("the recovery was not said:\n%s", st.log)
		}
	})
}

func TestThePoolTellsWhyItsLastQuestionFailedUntilOneSucceeds(t *testing.T) {
	s := broken(func(t *runtime.Tuning) { t.RetryCount, t.RetryWait, t.RetryMaxWait = 2, 2*time.Minute, 2*time.Minute })
	play(t, s, func(t *testing.T, st *stage) {
		if got := st.pool.State().Failing; got != "" {
			t.Errorf("before the first question it is %q", got)
		}
		service := answering("401 Unauthorized")
		st.reach(s, service)
		if got := st.pool.State().Failing; !strings.Contains(got, "check token") || !strings.Contains(st.log.String(), got) {
			t.Errorf("it is %q, want that the token is refused, as in the log:\n%s", got, st.log)
		}
		service.answer.Store("")
		wait(2 * time.Minute)
		if got := st.pool.State().Failing; !strings.Contains(got, "connection refused") || !strings.Contains(st.log.String(), got) {
			t.Errorf("it is %q, want that the connection is refused, as in the log:\n%s", got, st.log)
		}
		service.answer.Store("204 No Content")
		wait(5 * time.Minute)
		if got := st.pool.State().Failing; got != "" {
			t.Errorf("after a question that succeeded it is %q", got)
		}
	})
}

func TestASingleRunEndsAfterOneJob(t *testing.T) {
	play(t, spec(most(3), func(t *runtime.Tuning) { t.SingleRun = true }), func(t *testing.T, st *stage) {
		st.start()
		wait(time.Hour)
		st.cloud.Queue("a", "b")
		if err := st.end(); err != nil {
			t.Error(err)
		}
		if left := st.cloud.Queued(); !slices.Equal(left, []string{"b"}) {
			t.Errorf("still queued: %v, want b", left)
		}
		if state := st.pool.State(); !state.Finished || state.Phase != runtime.PoolStopped {
			t.Errorf("the pool is %s, finished %v", state.Phase, state.Finished)
		}
	})
}

func TestARestartedAgentAttendsWhatStillRunsAndStartsNothingTwice(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		old := runtime.Job{ID: "old", Subject: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
		st.cloud.Know(old, runtimetest.Definition("sleep 60"))
		st.engine.Script("old", runtimetest.Script{Running: 10 * time.Minute})
		st.engine.Script("ended", runtimetest.Script{Running: time.Second})
		st.engine.Script("young", runtimetest.Script{Running: time.Second})
		now := time.Now()
		st.engine.Adopt(&old, now.Add(-time.Minute))
		st.engine.Adopt(&runtime.Job{ID: "ended", Pool: spec().Key(), Agent: "agent-1"}, now.Add(-time.Hour))
		st.engine.Adopt(&runtime.Job{ID: "young", Pool: spec().Key(), Agent: "agent-1"}, now.Add(-3*time.Second))
		st.engine.Adopt(&runtime.Job{ID: "other", Pool: spec().Key(), Agent: "agent-2"}, now.Add(-time.Hour))
		st.engine.Adopt(&runtime.Job{ID: "elsewhere", Pool: "another-key", Agent: "agent-1"}, now.Add(-time.Hour))
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		if queued := st.cloud.Queued(); len(queued) != 1 {
			t.Error("the adopted job takes no slot")
		}
		st.wantDeeds("ended", "was adopted", "remove", "removed")
		st.wantDeeds("young", "was adopted")
		st.wantDeeds("other", "was adopted")
		st.wantDeeds("elsewhere", "was adopted")
		wait(10 * time.Minute)
		st.wantDeeds("old", "was adopted", "remove", "removed")
		st.wantDeeds("young", "was adopted", "remove", "removed") // by a later sweep
		st.wantDeeds("other", "was adopted")
		st.wantDeeds("elsewhere", "was adopted")
		st.wantDeeds("a", "start", "started", "remove", "removed")
	})
}

// An instance's times are by the clock of its engine, which may be far ahead of ours.
func TestWhatEndedByAClockThatIsAheadIsRemoved(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Script("ahead", runtimetest.Script{Running: time.Second})
		st.pool = runtime.NewPool(spec(), runtime.Parts{
			Cloud: st.cloud, Executor: aheadEngine{st.engine}, Agent: "agent-1", Log: slog.New(slog.NewTextHandler(st.log, nil)),
		})
		st.engine.Adopt(&runtime.Job{ID: "ahead", Pool: spec().Key(), Agent: "agent-1"}, time.Now().Add(-time.Hour))
		st.start()
		wait(time.Minute)
		st.wantDeeds("ahead", "was adopted", "remove", "removed")
	})
}

// aheadEngine is an engine whose clock is a day ahead.
type aheadEngine struct{ *runtimetest.Executor }

func (e aheadEngine) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	found, err := e.Executor.List(ctx, agent)
	for i := range found {
		found[i].Started = found[i].Started.Add(24 * time.Hour)
		if !found[i].Ended.IsZero() {
			found[i].Ended = found[i].Ended.Add(24 * time.Hour)
		}
	}
	return found, err
}

func TestWhatCouldNotBeRemovedIsSweptLater(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Second, RemoveErrors: []error{errors.New("the engine is busy")}})
		st.cloud.Queue("a")
		st.start()
		wait(time.Minute)
		if present := st.engine.Present(); len(present) != 1 {
			t.Fatalf("the story needs a leftover, there is %v", present)
		}
		wait(20 * time.Minute)
		st.wantDeeds("a", "start", "started", "remove", "not ended", "remove", "removed")
	})
}

func TestAnAdoptedJobThatIsCancelledIsStopped(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		old := runtime.Job{ID: "old", Subject: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
		st.cloud.Know(old, runtimetest.Definition("sleep 60"))
		st.engine.Script("old", runtimetest.Script{Running: runtimetest.Forever})
		st.engine.Adopt(&old, time.Now())
		st.start()
		st.cloud.Answer("old", runtime.Ended)
		wait(31 * time.Second)
		if present := st.engine.Present(); len(present) > 0 {
			t.Errorf("left: %v", present)
		}
	})
}

func TestLeftoverPool(t *testing.T) {
	leftover := runtime.PoolSpec{Name: spec().Name, Identity: spec().Identity, Leftover: true}
	run := func(t *testing.T, story func(st *stage)) {
		synctest.Test(t, func(t *testing.T) {
			slots := runtime.NewSlots(1)
			st := newStageWith(t, leftover, slots)
			old := runtime.Job{ID: "old", Subject: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
			st.engine.Script("old", runtimetest.Script{Running: 5 * time.Hour})
			st.engine.Adopt(&old, time.Now())
			st.cloud.Queue("a")
			st.pool.Drain()
			st.start()
			story(st)
			st.stop(errors.New("the story is over"))
			if err := st.end(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("drains without asking the service", func(t *testing.T) {
		run(t, func(st *stage) {
			wait(2 * time.Hour)
			state := st.pool.State()
			if state.Phase != runtime.PoolDraining || state.Why == "" || len(state.Jobs) != 1 || state.Overdue(time.Now()) > time.Minute {
				t.Errorf("the pool is %+v", state)
			}
			wait(4 * time.Hour)
			st.wantDeeds("old", "was adopted", "remove", "removed")
			for _, call := range []runtimetest.Call{runtimetest.Claim, runtimetest.Wanted, runtimetest.Report} {
				if calls := st.cloud.Calls(call); len(calls) > 0 {
					t.Errorf("%s was called at %v, without credentials", call, calls)
				}
			}
			if state := st.pool.State(); state.Phase != runtime.PoolStopped || state.Err != nil {
				t.Errorf("after its last job the pool is %+v", state)
			}
		})
	})
	t.Run("is revived with the settings of a configuration", func(t *testing.T) {
		run(t, func(st *stage) {
			old := runtime.Job{ID: "old", Subject: "deployment-of-old"}
			st.cloud.Know(old, runtimetest.Definition("sleep 60"))
			wait(time.Hour)
			st.pool.Tune(spec(most(2)))
			wait(2 * time.Minute)
			if asked := len(st.cloud.Calls(runtimetest.Wanted)); asked == 0 {
				t.Error("the service was not asked about the adopted job")
			}
			if queued := st.cloud.Queued(); len(queued) != 1 {
				t.Error("the adopted job takes no slot of the process")
			}
			st.cloud.Answer("old", runtime.Ended)
			wait(2 * time.Minute)
			st.wantDeeds("old", "was adopted", "remove", "term", "removed")
			st.wantDeeds("a", "start", "started", "remove", "removed")
		})
	})
}

func TestAdoptedJob(t *testing.T) {
	adopted := func(st *stage) {
		old := runtime.Job{ID: "old", Subject: "deployment-of-old", Pool: spec().Key(), Agent: "agent-1"}
		st.cloud.Know(old, runtimetest.Definition("sleep 60"))
		st.engine.Script("old", runtimetest.Script{Running: runtimetest.Forever})
		st.engine.Adopt(&old, time.Now())
	}
	t.Run("a service that never knew it does not stop it", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			adopted(st)
			st.cloud.Answer("old", runtime.Unanswered)
			st.start()
			wait(time.Minute)
			st.cloud.Answer("old", runtime.Gone)
			wait(time.Hour)
			st.wantDeeds("old", "was adopted")
		})
	})
	t.Run("a service that knew it and no longer does stops it", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *stage) {
			adopted(st)
			st.start()
			wait(time.Minute)
			st.cloud.Answer("old", runtime.Gone)
			wait(time.Minute)
			if present := st.engine.Present(); len(present) > 0 {
				t.Errorf("left: %v", present)
			}
		})
	})
}

func TestTuningReachesTheLoopAtOnceAndRunningJobsNotAtAll(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: time.Hour})
		st.cloud.Queue("a", "b", "c")
		st.start()
		next := spec(most(3), func(t *runtime.Tuning) { t.PollingInterval = 10 * time.Second })
		next.Generation = 8
		st.pool.Tune(next)
		wait(11 * time.Second)
		if present := st.engine.Present(); len(present) != 3 {
			t.Errorf("after the limit was raised to 3, %v run", present)
		}
		st.pool.Tune(spec(most(1))) // lowering it ends nothing
		wait(10 * time.Minute)
		if present := st.engine.Present(); len(present) != 3 {
			t.Errorf("after the limit was lowered to 1, %v run", present)
		}
	})
}

func TestEveryJobEndsOnceWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			st := newStage(t, spec(most(rapid.IntRange(1, 4).Draw(rt, "most"))))
			jobs := rapid.IntRange(1, 8).Draw(rt, "jobs")
			for i := range jobs {
				id := fmt.Sprint("job-", i)
				script := runtimetest.Script{
					Starting: time.Duration(rapid.IntRange(0, 90).Draw(rt, "starting")) * time.Second,
					Running:  time.Duration(rapid.IntRange(0, 300).Draw(rt, "running")) * time.Second,
					Ending:   time.Duration(rapid.IntRange(0, 60).Draw(rt, "ending")) * time.Second,
					Exit:     runtime.Exit{Code: rapid.SampledFrom([]int{0, 10, 11, 12, 1, 137}).Draw(rt, "code")},
					OnTerm:   runtime.Exit{Code: runtime.CodeFailed},
					Mute:     rapid.Bool().Draw(rt, "mute"),
				}
				if rapid.IntRange(0, 5).Draw(rt, "fail") == 0 {
					script.Fail = errors.New("no such image")
				}
				st.engine.Script(id, script)
				st.cloud.Queue(id)
			}
			for _, call := range []runtimetest.Call{runtimetest.Claim, runtimetest.Define, runtimetest.Wanted} {
				st.cloud.Fail(call, rapid.IntRange(0, 2).Draw(rt, string(call)), errors.New("500"))
			}
			st.start()
			for range rapid.IntRange(0, 6).Draw(rt, "events") {
				wait(time.Duration(rapid.IntRange(1, 200).Draw(rt, "wait")) * time.Second)
				job := fmt.Sprint("job-", rapid.IntRange(0, jobs-1).Draw(rt, "which"))
				switch rapid.IntRange(0, 5).Draw(rt, "event") {
				case 0:
					st.cloud.Answer(job, runtime.Ended)
				case 1:
					st.cloud.Answer(job, runtime.Gone)
				case 2:
					st.pool.Tune(spec(most(rapid.IntRange(1, 4).Draw(rt, "new most"))))
				case 3:
					st.engine.FailWhen(func(context.Context, runtime.Tuning) error { return errors.New("the engine is gone") })
				case 4:
					st.engine.FailWhen(func(ctx context.Context, _ runtime.Tuning) error {
						select {
						case <-ctx.Done():
						case <-time.After(time.Minute):
						}
						return errors.New("the engine does not answer")
					})
				case 5:
					st.engine.FailWhen(nil)
				}
			}
			if rapid.Bool().Draw(rt, "stopped") {
				st.stop(errors.New("the agent is stopping"))
			} else {
				st.pool.Drain()
			}
			if err := st.end(); err != nil {
				rt.Fatalf("the pool ended with %v", err)
			}
			st.stop(nil)
			queued := st.cloud.Queued()
			for i := range jobs {
				id := fmt.Sprint("job-", i)
				starts := 0
				for _, deed := range st.engine.Deeds(id) {
					if deed == runtimetest.Start {
						starts++
					}
				}
				if starts > 1 || starts > 0 && slices.Contains(queued, id) {
					rt.Fatalf("job %s was started %d times: %v", id, starts, st.engine.Deeds(id))
				}
			}
			if len(st.engine.Present()) > 0 || len(st.cloud.Lost()) > 0 || len(st.pool.State().Jobs) > 0 {
				rt.Fatalf("left: %v, lost: %v, held: %v", st.engine.Present(), st.cloud.Lost(), st.pool.State().Jobs)
			}
		})
	})
}

// slowList is an engine that takes its time to list.
type slowList struct{ *runtimetest.Executor }

func (s slowList) List(ctx context.Context, agent string) ([]runtime.Found, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(10 * time.Second):
		return s.Executor.List(ctx, agent)
	}
}

func TestAPoolHasBegunWhenItHasSeenWhatWasLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := runtime.NewPool(spec(), runtime.Parts{
			Cloud: runtimetest.NewCloud(), Executor: slowList{runtimetest.NewExecutor()}, Agent: "agent-1", UserAgent: "test",
			Environ: func(string) (string, bool) { return "", false }, Log: slog.New(slog.DiscardHandler),
		})
		ended := make(chan error, 1)
		go func() { ended <- pool.Run(context.Background()) }()
		state := func() string { s := pool.State(); return fmt.Sprint(s.Phase, " ", s.Begun) }
		wait(time.Second)
		if got := state(); got != "starting false" {
			t.Errorf("at first the pool is %s", got)
		}
		pool.Drain()
		if got := state(); got != "draining false" {
			t.Errorf("when it is drained before its start is over, the pool is %s", got)
		}
		pool.Tune(spec())
		<-pool.Begun()
		if got := state(); got != "polling true" {
			t.Errorf("after its start the pool is %s", got)
		}
		pool.Drain()
		if err := <-ended; err != nil || state() != "stopped true" {
			t.Errorf("at last the pool is %s, %v", state(), err)
		}
	})
}
