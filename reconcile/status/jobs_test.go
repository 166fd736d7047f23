package status

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

func TestWriteJobs(t *testing.T) {
	now := time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC)
	work := Job{
		Job: "job-1", Kind: "deployment", Deployment: "0c8e361b-2222-4444-8888-123456789abc", Organization: "acme",
		Project: "web", Stack: "prod", Operation: "update", Version: "12", Phase: "running", Instance: "3f2a9c",
		Since: now.Add(-4 * time.Minute),
	}
	later := Job{Job: "job-2", Kind: "insights-scan", Activity: "scan-1", Phase: "claimed", Since: now}
	ended := EndedJob{Job: work, Pool: "prod\x1b[2J", Outcome: "failed", EndedAt: now.Add(-time.Minute)}
	ended.Operation, ended.Version = "preview", ""
	var b strings.Builder
	err := WriteJobs(&b, Document{
		Now: now, Pools: []Pool{{Name: "prod", Jobs: []Job{later, work}}, {Name: "none"}}, Ended: []EndedJob{ended},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "jobs.txt", b.String())
}

func TestLastEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCounters()
		for i := range maxEnded + 20 {
			c.JobEnded("prod", runtime.JobState{ID: fmt.Sprint(i), Kind: runtime.Deployment}, runtime.OutcomeFailed)
			time.Sleep(time.Second)
		}
		last := c.lastEnded()
		if len(last) != maxEnded || last[0].Job.Job != fmt.Sprint(maxEnded+19) || last[maxEnded-1].Job.Job != "20" {
			t.Fatalf("%d jobs, from %s to %s", len(last), last[0].Job.Job, last[len(last)-1].Job.Job)
		}
		if got := last[0]; got.Pool != "prod" || got.Outcome != "failed" || time.Since(got.EndedAt) != time.Second {
			t.Errorf("the last job is %+v", got)
		}
	})
}
