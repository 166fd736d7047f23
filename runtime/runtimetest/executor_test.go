package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConform(t *testing.T) {
	engine := runtimetest.NewExecutor()
	engine.FailWhen(func(_ context.Context, tuning runtime.Tuning) error {
		if tuning.Instance.WorkingDirectory == "/nowhere" {
			return errors.New("there is no runner in /nowhere")
		}
		return nil
	})
	runtimetest.Conform(t, runtimetest.Harness{
		New: func(*testing.T) runtime.Executor { return engine },
		Job: func(_ *testing.T, job *runtime.Job, work runtimetest.Work) {
			ended := runtime.Exit{Code: runtime.CodeFailed}
			switch work {
			case runtimetest.Quick:
				engine.SetScript(job.ID, runtimetest.Script{Starting: 10 * time.Millisecond, Running: time.Second})
			case runtimetest.Failing:
				engine.SetScript(job.ID, runtimetest.Script{Running: time.Second, Exit: ended})
			case runtimetest.Lasting:
				engine.SetScript(job.ID, runtimetest.Script{Running: runtimetest.Forever, Ending: time.Second,
					OnTerm: ended})
			case runtimetest.Stubborn, runtimetest.Parent:
				engine.SetScript(job.ID, runtimetest.Script{Starting: 10 * time.Millisecond,
					Running: runtimetest.Forever, Ending: runtimetest.Forever})
			case runtimetest.BadJob:
				engine.SetScript(job.ID, runtimetest.Script{Fail: fmt.Errorf("pretend: %w", runtime.ErrJobFault)})
			case runtimetest.Misconfigured:
				job.Tuning.Instance.WorkingDirectory = "/nowhere"
			}
		},
		BadJobs: true,
		Leftovers: func(_ *testing.T, job *runtime.Job) []string {
			return slices.DeleteFunc(engine.Present(), func(id string) bool { return id != job.ID })
		},
		Virtual: true,
	})
}

func TestScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := runtimetest.NewExecutor()
		engine.SetScript("a", runtimetest.Script{
			Running: time.Hour,
			Progress: []runtimetest.TimedProgress{
				{After: time.Minute, Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
				{After: 2 * time.Hour, Progress: runtime.Progress{Step: 1, Status: runtime.Succeeded}},
			},
		})
		begin := time.Now()
		id := engine.Adopt(&runtime.Job{ID: "a"}, begin)
		stream, err := engine.Follow(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		buffer := make([]byte, 100)
		n, err := stream.Read(buffer)
		if text := string(buffer[:n]); err != nil || text != `{"step":1,"lines":0,"status":"running"}`+"\n" ||
			time.Since(begin) != time.Minute {
			t.Errorf("after %v the stream has %q (%v)", time.Since(begin), text, err)
		}
		if tail, err := io.ReadAll(stream); err != nil || len(tail) > 0 || time.Since(begin) != time.Hour {
			t.Errorf("after %v the stream has %q (%v), want its end after an hour", time.Since(begin), tail, err)
		}
	})
}

func TestExecutorRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := runtimetest.NewExecutor()
		broken := errors.New("no daemon")
		engine.SetScript("a", runtimetest.Script{Running: runtimetest.Forever, Ending: runtimetest.Forever,
			RemoveErrors: []error{broken}, Removal: time.Minute})
		id := engine.Adopt(&runtime.Job{ID: "a", Agent: "agent", Pool: "pool"}, time.Now())
		if err := engine.Remove(t.Context(), id, time.Second); !errors.Is(err, broken) {
			t.Errorf("the first removal ends with %v, want %v", err, broken)
		}
		begin := time.Now()
		if err := engine.Remove(t.Context(), id, time.Second); err != nil ||
			time.Since(begin) != time.Minute+time.Second {
			t.Errorf("the second removal takes %v (%v), want the grace period and a minute", time.Since(begin), err)
		}
		want := "[was adopted a remove a not ended a remove a term a kill a removed a]"
		if got := fmt.Sprint(engine.Events()); got != want {
			t.Errorf("got events %s, want %s", got, want)
		}
	})
}

func TestExecutorStart(t *testing.T) {
	engine, service := runtimetest.NewExecutor(), runtimetest.NewService()
	job := &runtime.Job{ID: "a", Definition: runtimetest.Definition("true")}
	service.Add(job)
	handoff := runtimetest.BaseHandoff(job)
	handoff.Version++
	_, err := engine.Start(t.Context(), job, runtime.NewSetup(job, service, handoff))
	if err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a handoff of another version returns %v, want an error about the version", err)
	}
	if left := engine.Present(); len(left) > 0 {
		t.Errorf("jobs %q have instances after a start that failed", left)
	}
}
