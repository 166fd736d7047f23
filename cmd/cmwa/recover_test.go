package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recoverLimit is the time after the start of an agent within which the service must know the
// outcome of each job of an earlier agent.
const recoverLimit = time.Minute

// TestRecover kills an agent, removes the instance of its job, and starts the agent again.
func TestRecover(t *testing.T) {
	t.Parallel()
	endless := order{Steps: []step{{Name: "a", Run: "echo running; sleep 600"}}}
	started := func(w *world, agent *program) {
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		w.kill(agent)
	}

	t.Run("instance is removed before the agent starts again", func(t *testing.T) {
		onEngineAndHost(t, func(t *testing.T, w *world) {
			agent := w.agent()
			w.queue("one", endless)
			started(w, agent)
			w.loseInstance("one")
			began := time.Now()
			w.agent().waitFor("job reported failed")
			w.await("one", "failed")
			if took := time.Since(began); took > recoverLimit {
				t.Errorf("the outcome was reported after %s", took)
			}
			if log := w.log("one"); !strings.Contains(log, "was removed while no agent ran") {
				t.Errorf("the log of the job has no reason:\n%s", log)
			}
			w.wantNoRecord()
		})
	})

	t.Run("pool is no longer configured when the agent starts again", func(t *testing.T) {
		onEngineAndHost(t, func(t *testing.T, w *world) {
			agent := w.agent("pools: [{name: before, token: " + w.pool + "}]")
			w.queue("one", endless)
			started(w, agent)
			w.loseInstance("one")
			w.agent("pools: [{name: after, token: " + w.pool + "}]").waitFor("job reported failed")
			w.await("one", "failed")
			w.wantNoRecord()
		})
	})
}

// onEngineAndHost runs a test once with deploy_target docker and once with process.
func onEngineAndHost(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	at(t, []string{"docker", "process"}, story)
}

// loseInstance removes the instance of a job, as a user or another program could.
func (w *world) loseInstance(stack string) {
	w.t.Helper()
	if w.target == "docker" {
		w.engine("rm", "--force", w.containers(stack)[0])
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
	if err := syscall.Kill(-leader.PID, syscall.SIGKILL); err != nil { // the group of the runner
		w.t.Fatal(err)
	}
	w.eventually("the directory of the job is removed", func() bool { return os.RemoveAll(directories[0]) == nil })
}

// wantNoRecord waits until the journal of the agent is empty.
func (w *world) wantNoRecord() {
	w.t.Helper()
	journal := filepath.Join(w.directory, "state", "cmwa", "records")
	if _, err := os.Stat(journal); err != nil {
		w.t.Fatalf("there is no journal (%v)", err)
	}
	w.eventually("the records are removed", func() bool {
		files, err := filepath.Glob(filepath.Join(journal, "*.json*"))
		w.must(err)
		return len(files) == 0
	})
}
