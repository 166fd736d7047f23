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
	st.t.Helper()
	if got := st.records.Operations(job); !slices.Equal(got, want) {
		st.t.Errorf("journal of job %s: got %q, want %q", job, got, want)
	}
}

func TestJournal(t *testing.T) {
	broken := errors.New("no space left on device")

	t.Run("each stage is recorded before the next one begins", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			var seen []string
			st.records.Before(func(call runtimetest.JournalCall, job string) {
				if job == "a" {
					seen = append(seen, fmt.Sprintf("%s: definitions %d, %v", call,
						len(st.cloud.Calls(runtimetest.Define)), st.engine.Operations("a")))
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
				t.Errorf("calls of the journal:\n%s\nwant:\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
			}
		})
	})

	t.Run("progress of the setup and of the runner is recorded", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Starting: time.Second, Running: time.Minute})
			st.cloud.Queue("a")
			st.start()
			wait(2 * time.Second)
			record, ok := st.records.Record("a")
			want := runtime.Progress{Step: 1, Lines: 2, Status: runtime.Running}
			if !ok || record.Progress != want {
				t.Errorf("the record has %+v, want %+v", record.Progress, want)
			}
			if record.Token.Reveal() != "token-of-a" || record.Pool != spec().Key() || record.PoolName != "default" ||
				record.WorkflowID != "deployment-of-a" || record.Identity != spec().Identity || record.Generation != 7 {
				t.Errorf("the record lacks data of the job: %s", record)
			}
			wait(2 * time.Minute)
		})
	})

	t.Run("job without a record runs", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.records.Fail(runtimetest.AddRecord, 1, broken)
			st.cloud.Queue("a")
			st.start()
			wait(30 * time.Second)
			st.wantOperations("a", "start", "started", "remove", "removed")
			st.wantRecord("a", "remove")
			if !strings.Contains(st.log.String(), "cannot record the job in the journal") {
				t.Errorf("the log has no warning:\n%s", st.log)
			}
			if failures := st.metrics.JournalFailures(); failures["default"] != 1 {
				t.Errorf("the failures are %v, want one", failures)
			}
		})
	})

	t.Run("record whose stage cannot be changed is removed before the job runs", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.records.Fail(runtimetest.SetStage, 1, broken)
			st.cloud.Queue("a")
			st.start()
			wait(30 * time.Second)
			st.wantOperations("a", "start", "started", "remove", "removed")
			st.wantRecord("a", "add", "remove")
		})
	})

	t.Run("job does not run if its record can be neither changed nor removed", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.records.Fail(runtimetest.SetStage, 1, broken)
			st.records.Fail(runtimetest.RemoveRecord, 1, broken)
			st.cloud.Queue("a")
			st.start()
			wait(30 * time.Second)
			st.wantOperations("a", "start", "no start")
			st.wantStep("a", 0, runtime.Failed, "record that the job starts: no space left on device")
			st.wantRecord("a", "add", "reported", "remove")
		})
	})

	t.Run("job that could not be started has no record", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Fail: errors.New("no such image")})
			st.cloud.Queue("a")
			st.start()
			wait(30 * time.Second)
			st.wantRecord("a", "add", "reported", "remove")
		})
	})

	t.Run("record stays if the outcome cannot be reported", func(t *testing.T) {
		play(t, spec(), func(t *testing.T, st *fixture) {
			st.engine.SetScript("a", runtimetest.Script{Running: time.Second, Exit: runtime.Exit{Code: 137}})
			st.cloud.Queue("a")
			st.start()
			st.cloud.Fail(runtimetest.Report, 1, errors.New("the service is away"))
			wait(30 * time.Second)
			st.wantRecord("a", "add", "handed_off")
		})
	})
}
