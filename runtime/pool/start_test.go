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
	rarely := spec(func(t *runtime.Tuning) { t.StatusInterval = 24 * time.Hour })
	lost := errors.New("no route to host")

	play(t, "heartbeats are sent while the definition is fetched", spec(), func(st *fixture) {
		release := st.cloud.Hang(runtimetest.Define)
		st.cloud.Queue("a")
		st.start()
		wait(20 * time.Minute)
		if beats := len(st.cloud.Reports("a")); beats < 39 {
			st.Errorf("%d heartbeats in 20 minutes, want one every 30 s", beats)
		}
		release()
		wait(time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
	})
	play(t, "a job without a definition after half an hour is reported as failed", spec(), func(st *fixture) {
		st.cloud.Hang(runtimetest.Define)
		st.cloud.Queue("a")
		st.start()
		wait(29 * time.Minute)
		st.wantStep("a", 0, runtime.NotStarted, "")
		wait(2 * time.Minute)
		st.wantStep("a", 0, runtime.Failed,
			"Error: fetch the job's definition: the service has not answered with a definition for 30m0s")
	})
	for text, err := range map[string]error{
		"the service no longer has this job": runtime.ErrGone,
		"500 internal server error":          errors.New("500 internal server error"),
	} {
		play(t, "a job without a definition is reported as failed: "+text, spec(), func(st *fixture) {
			st.cloud.Fail(runtimetest.Define, 1, err)
			st.cloud.Queue("a")
			st.start()
			st.wantStep("a", 0, runtime.Failed, "Error: fetch the job's definition: "+text)
			st.wantOperations("a")
		})
	}
	play(t, "a job whose instance cannot be created is reported as failed", spec(), func(st *fixture) {
		st.engine.SetScript("a",
			runtimetest.Script{Fail: fmt.Errorf("%w: no such image: example/none", runtime.ErrJobFault)})
		st.cloud.Queue("a", "b")
		st.start()
		wait(2 * time.Second)
		st.wantStep("a", 0, runtime.Failed, "Error: cannot be started: no such image: example/none\n")
		st.wantOperations("b", "start", "started", "remove", "removed")
	})
	play(t, "a cancellation is noticed while the definition is fetched", spec(), func(st *fixture) {
		st.cloud.Hang(runtimetest.Define)
		st.cloud.Queue("a")
		st.start()
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(31 * time.Second)
		st.wantJobs(0)
		st.wantStep("a", 0, runtime.NotStarted, "")
	})
	play(t, "a start without heartbeats ends before the service declares the job failed", rarely, func(st *fixture) {
		st.cloud.Fail(runtimetest.Report, 1000, lost)
		st.startJobs(runtimetest.Script{Starting: 20 * time.Minute}, "a")
		wait(9*time.Minute + time.Second)
		st.wantOperations("a", "start", "no start")
	})
	play(t, "an accepted heartbeat gives a start nine more minutes", rarely, func(st *fixture) {
		st.cloud.Fail(runtimetest.Report, 15, lost)
		st.startJobs(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour}, "a")
		wait(16 * time.Minute)
		st.wantOperations("a", "start", "started")
	})
	play(t, "a heartbeat that hangs does not delay the next one", rarely, func(st *fixture) {
		st.cloud.Hang(runtimetest.Report)
		st.startJobs(runtimetest.Script{Starting: 15 * time.Minute, Running: time.Hour}, "a")
		wait(16 * time.Minute)
		st.wantOperations("a", "start", "started")
		beats := len(st.cloud.Reports("a"))
		if beats < 28 {
			st.Errorf("%d heartbeats in 15 minutes, want one every 30 s after the first", beats)
		}
		wait(30 * time.Minute)
		if after := len(st.cloud.Reports("a")); after != beats {
			st.Errorf("%d more heartbeats after the setup, want none", after-beats)
		}
	})
	for _, status := range []runtime.JobStatus{runtime.Cancelled, runtime.Gone, runtime.Completing} {
		play(t, "a job that is "+string(status)+" after a long preparation is not started", rarely, func(st *fixture) {
			st.startJobs(runtimetest.Script{Starting: 2 * time.Minute}, "a", "b")
			wait(time.Minute)
			st.cloud.SetJobStatus("a", status)
			wait(90 * time.Second)
			st.wantOperations("a", "start", "no start")
			if step, _ := st.cloud.Step("a", 0); step == runtime.Failed {
				st.Error("the agent reported the job as failed")
			}
			wait(2 * time.Minute)
			st.wantOperations("b", "start", "started", "remove", "removed")
		})
	}
	play(t, "a start that lost the connection to the engine is tried again", rarely, func(st *fixture) {
		reset := fmt.Errorf("%w: reset by peer", runtime.ErrConnectionLost)
		st.startJobs(runtimetest.Script{
			Starting: time.Second, FailLate: []error{reset, reset}, Remains: true, Running: time.Minute,
		}, "a")
		wait(10 * time.Second)
		st.wantOperations("a", "start", "no start", "remove", "removed", "start", "no start", "remove", "removed",
			"start", "started")
		st.wantStep("a", 0, runtime.Running, "reset by peer. The agent tries again in 2s")
		st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off")
		handoff := st.engine.Handoff("a")
		if _, log := st.cloud.Step("a", 0); handoff.SetupLines != strings.Count(log, "\n") {
			st.Errorf("the runner continues the log at line %d, the service has:\n%s", handoff.SetupLines, log)
		}
		wait(2 * time.Minute)
		st.wantRecord("a", "add", "handed_off", "claimed", "handed_off", "claimed", "handed_off", "reported", "remove")
	})
	play(t, "a start is not tried again for longer than two minutes", rarely, func(st *fixture) {
		st.startJobs(runtimetest.Script{Fail: fmt.Errorf("%w: connection refused", runtime.ErrConnectionLost)}, "a")
		wait(time.Minute)
		st.wantStep("a", 0, runtime.NotStarted, "")
		wait(62 * time.Second)
		st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine: connection refused")
		if starts := len(st.engine.Operations("a")); starts != 2*8 {
			st.Errorf("%d operations, want 16: eight starts that failed", starts)
		}
	})
	play(t, "the retry limit counts from the loss of the connection", rarely, func(st *fixture) {
		st.startJobs(runtimetest.Script{
			Starting: 3 * time.Minute, FailLate: []error{runtime.ErrConnectionLost}, Running: time.Minute,
		}, "a")
		wait(7 * time.Minute)
		st.wantOperations("a", "start", "no start", "start", "started")
	})
	play(t, "a job that is cancelled between two tries is not started", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{
			FailLate: slices.Repeat([]error{runtime.ErrConnectionLost}, 6), Running: time.Minute,
		}, "a")
		wait(5 * time.Second)
		st.cloud.SetJobStatus("a", runtime.Cancelled)
		wait(2 * time.Minute)
		done := st.engine.Operations("a")
		if len(done) < 2*3 || slices.Contains(done, runtimetest.StartDone) {
			st.Errorf("got %v, want three or more starts that all fail", done)
		}
		st.wantJobs(0)
	})
	play(t, "a job is not started beside an instance that cannot be removed", rarely, func(st *fixture) {
		st.startJobs(runtimetest.Script{
			FailLate: []error{runtime.ErrConnectionLost}, Remains: true,
			RemoveErrors: slices.Repeat([]error{errors.New("device is busy")}, 100),
		}, "a")
		wait(10 * time.Minute)
		if done := st.engine.Operations("a"); slices.Contains(done, runtimetest.StartDone) {
			st.Errorf("the job is started beside its instance: %v", done)
		}
		st.wantStep("a", 0, runtime.Failed, "Error: lost the connection to the engine")
	})
	play(t, "a failed status call does not prevent a start", rarely, func(st *fixture) {
		st.cloud.Fail(runtimetest.JobStatus, 10, errors.New("503"))
		st.startJobs(runtimetest.Script{Starting: 2 * time.Minute}, "a")
		wait(3 * time.Minute)
		st.wantOperations("a", "start", "started", "remove", "removed")
	})
	play(t, "a time limit near the largest duration means no limit", spec(), func(st *fixture) {
		definition := runtimetest.Definition("true")
		definition.Timeout = math.MaxInt64
		st.cloud.Add(job("a"), definition)
		st.startJobs(runtimetest.Script{Running: time.Hour})
		wait(30 * time.Minute)
		st.wantOperations("a", "start", "started")
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
		play(t, name, spec(), func(st *fixture) {
			st.startJobs(runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: c.code},
				Progress: []runtimetest.TimedProgress{
					{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
					{Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
				}}, "a")
			wait(2 * time.Second)
			st.wantStep("a", 1, c.want, "")
		})
	}
}
