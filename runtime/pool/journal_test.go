package pool_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// wantRecord checks the calls about a job that the journal has accepted.
func (st *fixture) wantRecord(job string, want ...string) {
	st.Helper()
	if got := st.records.Operations(job); !slices.Equal(got, want) {
		st.Errorf("journal of job %s: got %q, want %q", job, got, want)
	}
}

func TestJournal(t *testing.T) {
	broken := errors.New("no space left on device")

	play(t, "each stage is recorded before the next one begins", spec(), func(st *fixture) {
		var seen []string
		st.records.Before(func(call runtimetest.JournalCall, job string) {
			if job == "a" {
				seen = append(seen, fmt.Sprintf("%s: definitions %d, %v", call, st.asked(runtimetest.Define),
					st.engine.Operations("a")))
			}
		})
		st.cloud.Queue("a")
		st.start()
		wait(30 * time.Second)
		st.wantRecord("a", "add", "handed_off", "reported", "remove")
		want := []string{
			"add: definitions 0, []",
			"set stage: definitions 1, [start]",
			"set stage: definitions 1, [start started]",
			"remove: definitions 1, [start started remove removed]",
		}
		if !slices.Equal(seen, want) {
			st.Errorf("calls of the journal:\n%s\nwant:\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	})

	play(t, "progress of the setup and of the runner is recorded", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Starting: time.Second, Running: time.Minute}, "a")
		wait(2 * time.Second)
		record, ok := st.records.Record("a")
		want := runtime.Progress{Step: 1, Lines: 2, Status: runtime.Running}
		if !ok || record.Progress != want {
			st.Errorf("the record has %+v, want %+v", record.Progress, want)
		}
		if record.Token.Reveal() != "token-of-a" || record.Pool != spec().Key() || record.PoolName != "default" ||
			record.WorkflowID != "deployment-of-a" || record.Identity != spec().Identity || record.Generation != 7 {
			st.Errorf("the record lacks data of the job: %s", record)
		}
		wait(2 * time.Minute)
	})

	play(t, "job without a record runs", spec(), func(st *fixture) {
		st.records.Fail(runtimetest.AddRecord, 1, broken)
		st.cloud.Queue("a")
		st.start()
		wait(30 * time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantRecord("a", "remove")
		st.wantInLog("cannot record the job in the journal")
		if failures := st.metrics.JournalFailures(); failures["default"] != 1 {
			st.Errorf("the failures are %v, want one", failures)
		}
	})

	play(t, "record whose stage cannot be changed is removed before the job runs", spec(), func(st *fixture) {
		st.records.Fail(runtimetest.SetStage, 1, broken)
		st.cloud.Queue("a")
		st.start()
		wait(30 * time.Second)
		st.wantOperations("a", "start", "started", "remove", "removed")
		st.wantRecord("a", "add", "remove")
	})

	play(t, "job does not run if its record can be neither changed nor removed", spec(), func(st *fixture) {
		st.records.Fail(runtimetest.SetStage, 1, broken)
		st.records.Fail(runtimetest.RemoveRecord, 1, broken)
		st.cloud.Queue("a")
		st.start()
		wait(30 * time.Second)
		st.wantOperations("a", "start", "no start")
		st.wantStep("a", 0, runtime.Failed, "record that the job starts: no space left on device")
		st.wantRecord("a", "add", "reported", "remove")
	})

	play(t, "job that could not be started has no record", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Fail: errors.New("no such image")}, "a")
		wait(30 * time.Second)
		st.wantRecord("a", "add", "reported", "remove")
	})

	play(t, "record stays if the outcome cannot be reported", spec(), func(st *fixture) {
		st.startJobs(runtimetest.Script{Running: time.Second, Exit: killed}, "a")
		st.cloud.Fail(runtimetest.Report, 1, errors.New("the service is away"))
		wait(30 * time.Second)
		st.wantRecord("a", "add", "handed_off")
	})
}
