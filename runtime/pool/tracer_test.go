package pool_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// tracer is a [runtime.Tracer] that keeps what it gets.
type tracer struct {
	mu       sync.Mutex
	states   map[string]runtime.JobState
	steps    map[string][]runtime.StepTime
	outcomes map[string]runtime.Outcome
}

func (*tracer) Parent(job *runtime.Job) string { return "parent of " + job.ID }

func (r *tracer) Trace(
	job *runtime.Job, state runtime.JobState, steps []runtime.StepTime, outcome runtime.Outcome,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[job.ID], r.steps[job.ID], r.outcomes[job.ID] = state, steps, outcome
}

// traced returns what the tracer has got of a job, and whether it has got anything.
func (r *tracer) traced(job string) (state runtime.JobState, outcome runtime.Outcome, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	outcome, ok = r.outcomes[job]
	return r.states[job], outcome, ok
}

// playTracer does what play does, with a tracer.
func playTracer(t *testing.T, name string, story func(st *fixture, r *tracer)) {
	t.Helper()
	play(t, name, spec(), func(st *fixture) {
		r := &tracer{
			states: map[string]runtime.JobState{}, steps: map[string][]runtime.StepTime{},
			outcomes: map[string]runtime.Outcome{},
		}
		st.rebuild(func(p *pool.Parts) { p.Tracer = r })
		story(st, r)
	})
}

func TestTracer(t *testing.T) {
	playTracer(t, "gets the times of stages and steps when the job is removed", func(st *fixture, r *tracer) {
		st.startJobs(runtimetest.Script{
			Running: 10 * time.Second, Removal: 2 * time.Second,
			Progress: []runtimetest.TimedProgress{
				{After: 4 * time.Second, Progress: runtime.Progress{Status: runtime.Succeeded, StepName: "prepare"}},
				{After: 5 * time.Second, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
			},
		}, "a")
		wait(11 * time.Second)
		if _, _, ok := r.traced("a"); ok {
			st.Error("the job is traced before its instance is removed")
		}
		wait(2 * time.Second)
		state, outcome, _ := r.traced("a")
		var stages []runtime.Stage
		for _, s := range state.Stages {
			stages = append(stages, s.Stage)
		}
		want := []runtime.Stage{
			runtime.StageClaim, runtime.StageDefinition, runtime.StageCreate, runtime.StageFirstLine, runtime.StageRun,
			runtime.StageRemove,
		}
		if !slices.Equal(stages, want) || outcome != runtime.OutcomeSucceeded {
			st.Errorf("the stages are %v, want %v; the outcome is %q", stages, want, outcome)
		}
		if remove := state.Stages[len(state.Stages)-1]; remove.End.Sub(remove.Start) != 2*time.Second {
			st.Errorf("the removal is %+v, want two seconds", remove)
		}
		at := func(seconds time.Duration) time.Time { return state.Since.Add(seconds * time.Second) }
		steps := []runtime.StepTime{
			{Step: 0, Name: "prepare", Status: runtime.Succeeded, Start: at(0), End: at(4)},
			{Step: 1, Status: runtime.Running, Start: at(5)},
		}
		if got := r.steps["a"]; !slices.Equal(got, steps) { // traced has waited for them
			st.Errorf("the steps are\n%+v, want\n%+v", got, steps)
		}
	})
	playTracer(t, "gets no outcome of a job that goes on", func(st *fixture, r *tracer) {
		st.rebuild(func(p *pool.Parts) {
			p.Tracer, p.Executor, p.Journal = r, &adopter{Executor: st.engine, taken: map[string]bool{}}, nil
		})
		st.startJobs(runtimetest.Script{Running: runtimetest.Forever}, "a")
		st.shutdown()
		if _, outcome, ok := r.traced("a"); !ok || outcome != "" {
			st.Errorf("the outcome is %q, want none", outcome)
		}
	})
}
