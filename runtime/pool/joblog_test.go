package pool_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// TestJobRunLog checks that the log and the state name a job in the same way.
func TestJobRunLog(t *testing.T) {
	work := runtime.Work{
		Organization: "acme", Project: "web", Stack: "prod", Operation: "update", Version: "12",
		URL: "https://a.example/12",
	}
	definition := runtimetest.Definition("echo")
	definition.Work = work
	const names = " deployment=deployment-of-a organization=acme project=web stack=prod operation=update version=12"
	long := runtimetest.Script{Running: 10 * time.Minute}
	last := func(st *fixture, message string) string {
		lines := strings.Split(strings.TrimSpace(st.log.String()), "\n")
		for i := len(lines) - 1; i >= 0; i-- {
			if strings.Contains(lines[i], message) {
				return lines[i]
			}
		}
		return ""
	}
	wantState := func(st *fixture) {
		st.Helper()
		jobs := st.pool.State().Jobs
		if len(jobs) != 1 || jobs[0].Work != work || jobs[0].WorkflowID != "deployment-of-a" {
			st.Errorf("the state has the jobs %+v", jobs)
		}
	}
	play(t, "names are known from the definition on", spec(), func(st *fixture) {
		st.cloud.Add(job("a"), definition)
		st.engine.SetDefaultScript(long)
		st.start()
		wait(time.Minute)
		wantState(st)
		wait(time.Hour)
		for message, want := range map[string]string{
			"job claimed": " deployment=deployment-of-a\n", "job succeeded": names + " ",
			`msg="job started"`: names + " instance=",
		} {
			if line := last(st, message); !strings.Contains(line+"\n", want) {
				t.Errorf("the line is %q, want %q in it", line, want)
			}
		}
		if line := last(st, `msg="job started"`); !strings.HasSuffix(line, " url=https://a.example/12") {
			t.Errorf("the line is %q, want the page of the job in it", line)
		}
	})
	play(t, "a recovered job without an instance gets its names from the service", spec(), func(st *fixture) {
		left, s := job("a"), spec()
		left.Pool, left.PoolName, left.Identity = s.Key(), s.Name, s.Identity
		st.cloud.AddClaimed(left, definition)
		st.addRecord(&left, runtime.RecordHandedOff, time.Minute)
		st.start()
		wait(time.Minute)
		if line := last(st, "job reported failed"); !strings.Contains(line, names+" reason=") {
			t.Errorf("the line is %q", line)
		}
	})
	play(t, "an adopted job has the names of its instance", spec(), func(st *fixture) {
		st.addInstance(runtime.Job{
			ID: "a", Pool: st.spec.Key(), Agent: "agent-1", Definition: runtime.Definition{Work: work},
		}, long, time.Minute)
		st.start()
		wait(time.Minute)
		wantState(st)
		if line := last(st, "job resumed"); !strings.Contains(line, names+" instance=") {
			t.Errorf("the line is %q", line)
		}
	})
}
