package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// TestJobsList lists the jobs of a real agent: one that runs, one that has succeeded and one that has failed.
func TestJobsList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	w.agent("max_concurrent_jobs: 2")
	w.queue("good", oneStep("true").in(w.poolID))
	w.await("good", "succeeded")
	w.queue("bad", oneStep("false").in(w.poolID))
	w.await("bad", "failed")
	w.hold("held", w.poolID)

	list := func(args ...string) output {
		t.Helper()
		got := cmwa(w.environ(), append([]string{
			"jobs", "list", "--config", filepath.Join(w.directory, "agent.yaml"),
		}, args...)...)
		if got.code != cli.ExitOK {
			t.Fatalf("cmwa jobs list ends with %d: %s", got.code, got.stderr)
		}
		return got
	}
	w.eventually("both jobs have ended", func() bool { return strings.Count(list().stdout, ", after ") == 2 })

	lines := strings.Split(list().stdout, "\n")
	for i, want := range []string{"tests/held ", "tests/bad ", "tests/good "} {
		line := lines[i+1]
		state := []string{"running for ", "failed ", "succeeded "}[i]
		if !strings.Contains(line, want) || !strings.Contains(line, state) || !strings.Contains(line, " job-") {
			t.Errorf("line %d is %q, want one with %q, %q and an instance", i+1, line, want, state)
		}
	}
	var jobs jobsOf
	decode(t, []byte(list("--json").stdout), &jobs)
	if len(jobs.Pools) != 1 || len(jobs.Pools[0].Jobs) != 1 || jobs.Pools[0].Jobs[0].Stack != "held" ||
		len(jobs.Ended) != 2 || jobs.Ended[0].Stack != "bad" || jobs.Ended[0].Outcome != "failed" {
		t.Errorf("the jobs are %+v", jobs)
	}
	w.release("held")
}

// TestJobsStop stops a job of a real agent. The agent goes on.
func TestJobsStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.agent()
	w.queue("one", order{Steps: []step{{Name: "a", Run: "echo running; sleep 600"}, {Name: "b", Run: "true"}}})
	w.waitStarted("one")
	stop := func(id string) output {
		return cmwa(w.environ(), "jobs", "stop", "--config", filepath.Join(w.directory, "agent.yaml"), id)
	}
	if got := stop("another"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "no job another runs") {
		t.Errorf("cmwa jobs stop of another job: %+v", got)
	}
	if got := stop(w.id("one")); got.code != cli.ExitOK || !strings.Contains(got.stdout, "of organization/tests/one") {
		t.Errorf("cmwa jobs stop: %+v", got)
	}
	w.await("one", "failed")
	w.wantSteps("one", "succeeded", "failed", "not-started")
	w.wantLog("one", "Reason: cmwa jobs stop has stopped the job")
	agent.waitFor("job stopped by cmwa jobs stop")
	w.queue("two", oneStep("true"))
	w.await("two", "succeeded")
}
