package runtime_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// asked counts the calls of a kind.
func (st *stage) asked(call runtimetest.Call) int { return len(st.cloud.Calls(call)) }

// wantFresh checks that the pool has gone forward, or has waited on purpose,
// within the last second.
func (st *stage) wantFresh() {
	st.t.Helper()
	if still := time.Since(st.pool.State().Progress); still > time.Second {
		st.t.Errorf("the pool counts as standing still for %s", still)
	}
}

func TestAnIntervalThatIsLoweredHoldsForTheNextQuestionAboutARunningJob(t *testing.T) {
	every := func(span time.Duration) runtime.PoolSpec {
		return spec(func(t *runtime.Tuning) { t.StatusInterval = span })
	}
	for name, c := range map[string]struct {
		passed, lowered, left time.Duration // since the last question, and until the next one
	}{
		"that is not yet due": {10 * time.Second, 30 * time.Second, 20 * time.Second},
		"that is past":        {9 * time.Minute, 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, every(10*time.Minute), func(t *testing.T, st *stage) {
				st.engine.Otherwise(runtimetest.Script{Running: 2 * time.Hour})
				st.cloud.Queue("a")
				st.start()
				wait(10 * time.Minute)
				wait(c.passed)
				if st.asked(runtimetest.Wanted) != 1 {
					t.Fatalf("the story needs one question, there were %d", st.asked(runtimetest.Wanted))
				}
				release := st.cloud.Hang(runtimetest.Wanted)
				st.pool.Tune(every(c.lowered))
				wait(0)
				st.wantFresh() // also before the service answers
				release()
				if c.left > 0 {
					wait(c.left - time.Millisecond)
					if asked := st.asked(runtimetest.Wanted); asked != 1 {
						t.Errorf("%d questions before the new interval was over", asked-1)
					}
					wait(time.Millisecond)
				}
				if asked := st.asked(runtimetest.Wanted); asked != 2 {
					t.Errorf("%d questions %s after the edit, want 1", asked-1, c.left)
				}
				wait(c.lowered)
				if asked := st.asked(runtimetest.Wanted); asked != 3 {
					t.Errorf("%d questions one new interval later, want 2", asked-1)
				}
			})
		})
	}
}

func TestNoRowOfEditsPutsOffOrMultipliesTheQuestionsAboutARunningJob(t *testing.T) {
	play(t, spec(), func(t *testing.T, st *stage) {
		st.engine.Otherwise(runtimetest.Script{Running: 2 * time.Hour})
		st.cloud.Queue("a")
		st.start()
		for range 60 * 60 {
			wait(time.Second)
			st.pool.Tune(spec())
		}
		if asked := st.asked(runtimetest.Wanted); asked < 118 || asked > 120 {
			t.Errorf("%d questions in an hour with an edit each second, want one every 30 s", asked)
		}
	})
}

func TestJobsOfBeforeDoNotCountForASingleRunThatIsSwitchedOn(t *testing.T) {
	once := func(t *runtime.Tuning) { t.SingleRun = true }
	play(t, spec(), func(t *testing.T, st *stage) {
		st.cloud.Queue("a")
		st.start()
		wait(time.Hour)
		st.pool.Tune(spec(once))
		wait(time.Hour)
		if state := st.pool.State(); state.Phase != runtime.PoolPolling || state.Finished {
			t.Fatalf("before a job has come the pool is %s, finished %v", state.Phase, state.Finished)
		}
		st.cloud.Queue("b", "c")
		wait(2 * time.Minute)
		state := st.pool.State()
		if left := st.cloud.Queued(); state.Phase != runtime.PoolStopped || !state.Finished || strings.Join(left, " ") != "c" {
			t.Errorf("after one job the pool is %s, finished %v, and queued are %v; want it over, with c left", state.Phase, state.Finished, left)
		}
	})
}

func TestAJobThatRunsWhenASingleRunIsSwitchedOnIsTheOne(t *testing.T) {
	once := func(t *runtime.Tuning) { t.SingleRun = true }
	play(t, spec(most(2)), func(t *testing.T, st *stage) {
		st.engine.Script("a", runtimetest.Script{Running: time.Second})
		st.engine.Script("b", runtimetest.Script{Running: 2 * time.Hour})
		st.cloud.Queue("a", "b")
		st.start()
		wait(time.Hour)
		st.pool.Tune(spec(once))
		st.pool.Tune(spec(once, most(3))) // it stays one
		st.cloud.Queue("c")
		wait(59 * time.Minute)
		if state := st.pool.State(); state.Finished || len(state.Jobs) != 1 {
			t.Errorf("while the job runs the pool is %s, finished %v, with %d jobs", state.Phase, state.Finished, len(state.Jobs))
		}
		wait(2 * time.Minute)
		state := st.pool.State()
		if left := st.cloud.Queued(); !state.Finished || state.Phase != runtime.PoolStopped || len(left) != 1 {
			t.Errorf("after it the pool is %s, finished %v, and queued are %v", state.Phase, state.Finished, left)
		}
	})
}
