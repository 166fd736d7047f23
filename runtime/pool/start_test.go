package pool_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestStart(t *testing.T) {
	rarely := func(t *runtime.Tuning) { t.StatusInterval = 24 * time.Hour }
	lost := errors.New("no route to host")

	t.Run("heartbeats are sent while the definition is fetched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			release := st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(20 * time.Minute)
			if beats := len(st.cloud.Reports("a")); beats < 39 {
				t.Errorf("%d heartbeats in 20 minutes, want one every 30 s", beats)
			}
			release()
			wait(time.Second)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a job without a definition after half an hour is reported as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			wait(29 * time.Minute)
			st.wantStep("a", 0, runtime.NotStarted, "")
			wait(2 * time.Minute)
			st.wantStep("a", 0, runtime.Failed,
				"Error: fetch the job's definition: the service has not answered with a definition for 30m0s")
		})
	})
	t.Run("a job whose definition the service does not have is reported as failed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Fail(runtimetest.Define, 1, runtime.ErrGone)
			st.cloud.Queue("a")
			st.start()
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: the service no longer has this job")
		})
	})
	t.Run("a cancellation is noticed while the definition is fetched", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.cloud.Hang(runtimetest.Define)
			st.cloud.Queue("a")
			st.start()
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(31 * time.Second)
			if jobs := st.pool.State().Jobs; len(jobs) > 0 {
				t.Errorf("the pool still holds %v", jobs)
			}
			st.wantStep("a", 0, runtime.NotStarted, "")
		})
	})
	t.Run("a start without heartbeats ends before the service declares the job failed", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 20 * time.Minute})
			st.cloud.Fail(runtimetest.Report, 1000, lost)
			st.cloud.Queue("a")
			st.start()
			wait(9*time.Minute + time.Second)
			st.wantOperations("a", "start", "no start")
		})
	})
	t.Run("an accepted heartbeat gives a start nine more minutes", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Fail(runtimetest.Report, 15, lost)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantOperations("a", "start", "started")
		})
	})
	t.Run("a heartbeat that hangs does not delay the next one", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour})
			st.cloud.Hang(runtimetest.Report)
			st.cloud.Queue("a")
			st.start()
			wait(16 * time.Minute)
			st.wantOperations("a", "start", "started")
			if beats := len(st.cloud.Reports("a")); beats < 28 {
				t.Errorf("%d heartbeats in 15 minutes, want one every 30 s after the first", beats)
			}
		})
	})
	t.Run("a job that was cancelled during a long preparation is not started", func(t *testing.T) {
		for _, status := range []runtime.JobStatus{runtime.Cancelled, runtime.Gone, runtime.Completing} {
			play(t, spec(rarely), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Starting: 2 * time.Minute})
				st.cloud.Queue("a", "b")
				st.start()
				wait(time.Minute)
				st.cloud.SetJobStatus("a", status)
				wait(90 * time.Second)
				st.wantOperations("a", "start", "no start")
				if step, _ := st.cloud.Step("a", 0); step == runtime.Failed {
					t.Errorf("%s: the agent reported the job as failed", status)
				}
				wait(2 * time.Minute)
				st.wantOperations("b", "start", "started", "remove", "removed")
			})
		}
	})
	t.Run("a start that lost the connection to the engine is tried again", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			reset := fmt.Errorf("%w: reset by peer", runtime.ErrConnectionLost)
			st.engine.SetDefaultScript(runtimetest.Script{
				Starting: time.Second, FailLate: []error{reset, reset}, Remains: true, Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(10 * time.Second)
			st.wantOperations("a", "start", "no start", "remove", "removed", "start", "no start", "remove", "removed",
				"start", "started")
			st.wantStep("a", 0, runtime.Running, "reset by peer. The agent tries again in 2s")
			st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off")
			handoff := st.engine.Handoff("a")
			if _, log := st.cloud.Step("a", 0); handoff.SetupLines != strings.Count(log, "\n") {
				t.Errorf("the runner continues the log at line %d, the service has:\n%s", handoff.SetupLines, log)
			}
			wait(2 * time.Minute)
			st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off", "reported",
				"remove")
		})
	})
	t.Run("a start is not tried again for longer than two minutes", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			refused := fmt.Errorf("%w: connection refused", runtime.ErrConnectionLost)
			st.engine.SetDefaultScript(runtimetest.Script{Fail: refused})
			st.cloud.Queue("a")
			st.start()
			wait(time.Minute)
			st.wantStep("a", 0, runtime.NotStarted, "")
			wait(62 * time.Second)
			st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine: connection refused")
			if starts := len(st.engine.Operations("a")); starts != 2*8 {
				t.Errorf("%d operations, want 16: eight starts that failed", starts)
			}
		})
	})
	t.Run("the time before the connection is lost does not count towards the retry limit", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				Starting: 3 * time.Minute, FailLate: []error{runtime.ErrConnectionLost}, Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(7 * time.Minute)
			st.wantOperations("a", "start", "no start", "start", "started")
		})
	})
	t.Run("a job that is cancelled between two tries is not started", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{
				FailLate: slices.Repeat([]error{runtime.ErrConnectionLost}, 6), Running: time.Minute,
			})
			st.cloud.Queue("a")
			st.start()
			wait(5 * time.Second)
			st.cloud.SetJobStatus("a", runtime.Cancelled)
			wait(2 * time.Minute)
			done := st.engine.Operations("a")
			if len(done) < 2*3 || slices.Contains(done, runtimetest.StartDone) {
				t.Errorf("got %v, want three or more starts, all of which fail", done)
			}
			if jobs := st.pool.State().Jobs; len(jobs) > 0 {
				t.Errorf("the pool still holds %v", jobs)
			}
		})
	})
	t.Run("a job is not started beside an instance that cannot be removed", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			busy := make([]error, 100)
			for i := range busy {
				busy[i] = errors.New("device is busy")
			}
			st.engine.SetDefaultScript(runtimetest.Script{
				FailLate: []error{runtime.ErrConnectionLost}, Remains: true, RemoveErrors: busy,
			})
			st.cloud.Queue("a")
			st.start()
			wait(10 * time.Minute)
			if done := st.engine.Operations("a"); slices.Contains(done, runtimetest.StartDone) {
				t.Errorf("the job is started beside its instance: %v", done)
			}
			st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine")
		})
	})
	t.Run("a failed status call does not prevent a start", func(t *testing.T) {
		play(t, spec(rarely), func(t *testing.T, st *fixture) {
			st.engine.SetDefaultScript(runtimetest.Script{Starting: 2 * time.Minute})
			st.cloud.Fail(runtimetest.JobStatus, 10, errors.New("503"))
			st.cloud.Queue("a")
			st.start()
			wait(3 * time.Minute)
			st.wantOperations("a", "start", "started", "remove", "removed")
		})
	})
	t.Run("a time limit near the largest duration means no limit", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			definition := runtimetest.Definition("true")
			definition.Timeout = math.MaxInt64
			st.cloud.Add(job("a"), definition)
			st.engine.SetDefaultScript(runtimetest.Script{Running: time.Hour})
			st.start()
			wait(30 * time.Minute)
			st.wantOperations("a", "start", "started")
		})
	})
}

func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		want runtime.Status
	}{
		"an unreported success is reported as success": {runtime.CodeSucceededUnreported, runtime.Succeeded},
		"an unreported failure is reported as failure": {runtime.CodeFailedUnreported, runtime.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, spec(), func(t *testing.T, st *fixture) {
				st.engine.SetDefaultScript(runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: c.code},
					Progress: []runtimetest.TimedProgress{
						{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
						{Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
					}})
				st.cloud.Queue("a")
				st.start()
				wait(2 * time.Second)
				st.wantStep("a", 1, c.want, "")
			})
		})
	}
}
