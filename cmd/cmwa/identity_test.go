package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// claimedJob matches the id of a job that an agent claimed.
var claimedJob = regexp.MustCompile(`job claimed.* job=(\S+)`)

// startWith starts an agent of a file with these lines, and waits until it polls.
func (w *world) startWith(file string, env []string, lines ...string) *program {
	w.t.Helper()
	w.replace(file, w.content(lines...))
	agent := w.start("agent", env, "cmwa", "run", "--config", file)
	agent.says("converged")
	return agent
}

// kill kills an agent, so that its job is left running.
func (w *world) kill(agent *program) {
	w.t.Helper()
	agent.signal(syscall.SIGKILL)
	if !agent.ends(storyLimit) {
		w.t.Fatal("the agent does not end")
	}
}

// attends checks that an agent attends the job that an earlier one claimed, and no
// other.
func (w *world) attends(agent, earlier *program) {
	w.t.Helper()
	job := claimedJob.FindStringSubmatch(earlier.output())
	if job == nil {
		w.t.Fatalf("the earlier agent has claimed nothing:\n%s", earlier.output())
	}
	agent.says("attending it")
	for line := range strings.Lines(agent.output()) {
		if strings.Contains(line, "attending it") && !strings.Contains(line, "job="+job[1]) {
			w.t.Errorf("the agent attends another job than %s: %s", job[1], line)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Run("agents that restart in another order attend their own jobs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(2)
		files := []string{filepath.Join(w.folder, "one.yaml"), filepath.Join(w.folder, "two.yaml")}
		start := func(n int) *program { return w.startWith(files[n], nil, "token: "+p[n].token) }
		one, two := start(0), start(1)
		w.hold("one", p[0].id)
		w.hold("two", p[1].id)
		w.kill(one)
		w.kill(two)
		twoAgain, oneAgain := start(1), start(0)
		w.attends(twoAgain, two)
		w.attends(oneAgain, one)
		w.release("one")
		w.release("two")
	})

	t.Run("one of several agents with one file finds its job again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(1)
		file := filepath.Join(w.folder, "agent.yaml")
		start := func() *program { return w.startWith(file, nil, "token: "+p[0].token) }
		first := start()
		w.hold("one", p[0].id)
		second := start()
		w.hold("two", p[0].id)
		w.release("one")
		first.signal(syscall.SIGTERM)
		first.exit(exitOK)
		w.kill(second)
		w.attends(start(), second)
		w.release("two")
	})

	t.Run("agents with private temporary folders leave each other's jobs alone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker") // one engine, as the agents see no file of each other
		p := w.pools(1)
		private := func(name string) []string {
			folder := filepath.Join(w.folder, name)
			w.must(os.Mkdir(folder, 0o700))
			return []string{"TMPDIR=" + folder, "XDG_STATE_HOME=" + folder}
		}
		file := filepath.Join(w.folder, "agent.yaml")
		w.startWith(file, private("one"), "token: "+p[0].token)
		w.queue("one", order{
			Steps:   []step{{Name: "a", Run: "echo begun; while ! [ -e /released ]; do sleep 0.02; done; echo finished"}},
			Request: map[string]any{"agentPoolID": p[0].id},
		})
		w.begun("one")
		second := w.startWith(file, private("two"), "token: "+p[0].token)
		second.signal(syscall.SIGTERM)
		second.signal(syscall.SIGTERM)
		second.exit(exitOK)
		if strings.Contains(second.output(), "attending it") {
			t.Errorf("the second agent attends the job of the first:\n%s", second.output())
		}
		containers := w.containers("one")
		if len(containers) != 1 {
			t.Fatalf("the job has containers %v", containers)
		}
		w.engine("exec", containers[0], "touch", "/released")
		w.finished("one")
	})

	t.Run("without a usable state folder the agent works and tells what it cannot do", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		p := w.pools(1)
		occupied := filepath.Join(w.folder, "occupied")
		w.must(os.WriteFile(occupied, nil, 0o600))
		agent := w.startWith(filepath.Join(w.folder, "agent.yaml"), nil, "token: "+p[0].token, "state_directory: "+occupied)
		agent.says("after a restart the agent cannot adopt the jobs that it starts now")
		agent.says("set state_directory to a folder")
		w.hold("one", p[0].id)
		w.release("one")
	})
}
