package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile/status"
)

// recoverLimit is the time after the start of an agent within which the service must know the
// outcome of each job of an earlier agent.
const recoverLimit = time.Minute

// TestRecover kills an agent, removes the instance of its job, and starts the agent again.
func TestRecover(t *testing.T) {
	t.Parallel()
	// lose runs a job, kills the agent, and removes the instance of the job. A process of a step ends when its
	// directory is removed.
	lose := func(w *world, settings ...string) {
		agent := w.agent(settings...)
		w.queue("one", oneStep(`echo running; while [ -e "$PULUMI_WORKFLOW_ROOT" ]; do sleep 0.1; done`))
		w.waitStarted("one")
		w.kill(agent)
		w.loseInstance("one")
	}

	t.Run("instance is removed before the agent starts again", func(t *testing.T) {
		atLocalTargets(t, func(t *testing.T, w *world) {
			lose(w)
			started := time.Now()
			w.agent().waitFor("job reported failed")
			w.await("one", "failed")
			if took := time.Since(started); took > recoverLimit {
				t.Errorf("the outcome was reported after %s", took)
			}
			w.wantLog("one", "was removed while no agent ran")
			w.wantNoRecord()
		})
	})

	t.Run("pool is no longer configured when the agent starts again", func(t *testing.T) {
		atLocalTargets(t, func(t *testing.T, w *world) {
			lose(w, "pools: [{name: before, token: "+w.pool+"}]")
			w.agent("pools: [{name: after, token: " + w.pool + "}]").waitFor("job reported failed")
			w.await("one", "failed")
			w.wantNoRecord()
		})
	})
}

// sameNames reports whether two states of a job have the same names. The stages of a job are those that one agent has
// measured.
func sameNames(a, b status.Job) bool {
	a.Stages, b.Stages = nil, nil
	return reflect.DeepEqual(a, b)
}

// TestRecoverNames kills an agent, and checks that the next one gives its job the same names.
func TestRecoverNames(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		first := w.startedJob(oneStep("echo running; sleep 600"))
		before := w.onlyJob()
		if before.Deployment != w.id(w.stack()) || before.Stack != w.stack() || before.Version == "" {
			t.Fatalf("the status names the job %+v", before)
		}
		w.kill(first)
		next := w.agent()
		next.waitFor("job resumed")
		if after := w.onlyJob(); !sameNames(after, before) {
			t.Errorf("after the restart the status names the job\n%+v\nand before\n%+v", after, before)
		}
		w.killRunner()
		w.await(w.stack(), "failed")
		names := fmt.Sprintf("project=%s stack=%s version=%s", before.Project, before.Stack, before.Version)
		if log := next.output(); !strings.Contains(log, names+" reason=") {
			t.Errorf("%q is not in the log of the end:\n%s", names, log)
		}
	})
}

// onlyJob returns the only job in the status of the agent, when it runs, without its time.
func (w *world) onlyJob() (job status.Job) {
	w.t.Helper()
	w.eventually("the status shows a running job", func() bool {
		var d status.Document
		text := w.once("status", "--json", "--config", filepath.Join(w.directory, "agent.yaml")).stdout
		if json.Unmarshal([]byte(text), &d) != nil || len(d.Pools) != 1 || len(d.Pools[0].Jobs) != 1 {
			return false
		}
		job = d.Pools[0].Jobs[0]
		job.Since = time.Time{}
		return job.Phase == "running"
	})
	return job
}

// loseInstance removes the instance of a job, as a user or another program could.
func (w *world) loseInstance(stack string) {
	w.t.Helper()
	if w.target == "docker" {
		w.engine("rm", "--force", w.container(stack))
		return
	}
	directories, err := filepath.Glob(filepath.Join(w.directory, "cmwa-process-*", "job-*"))
	if err != nil || len(directories) != 1 {
		w.t.Fatalf("the directories of jobs are %q (%v), want one", directories, err)
	}
	var leader struct{ PID int }
	text, err := os.ReadFile(filepath.Join(directories[0], "leader.json"))
	if err = errors.Join(err, json.Unmarshal(text, &leader)); err != nil || leader.PID <= 1 {
		w.t.Fatalf("the leader of the job is %q (%v)", text, err)
	}
	w.must(syscall.Kill(-leader.PID, syscall.SIGKILL)) // the group of the runner
	w.eventually("the directory of the job is removed", func() bool { return os.RemoveAll(directories[0]) == nil })
}

// wantNoRecord waits until the journal of the agent is empty.
func (w *world) wantNoRecord() {
	w.t.Helper()
	journal := filepath.Join(w.directory, "state", "cmwa", "records")
	_, err := os.Stat(journal)
	w.must(err)
	w.eventually("the records are removed", func() bool {
		files, err := filepath.Glob(filepath.Join(journal, "*.json*"))
		w.must(err)
		return len(files) == 0
	})
}
