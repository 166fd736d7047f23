package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// queueTen queues ten jobs that end immediately, and returns their stacks.
func (w *world) queueTen() (stacks []string) {
	w.t.Helper()
	for i := range 10 {
		stacks = append(stacks, fmt.Sprint("queued-", i))
		w.queueShort(stacks[i], w.poolID)
	}
	return stacks
}

// allSucceed blocks until the jobs of these stacks have ended, and checks that they have succeeded.
func (w *world) allSucceed(stacks []string) {
	w.t.Helper()
	for _, stack := range stacks {
		w.await(stack, finalStatuses...)
		w.wantStatus(stack, "succeeded")
	}
}

// wantNoneClaimed checks that none of the jobs was claimed, and that the pool of the world has not
// polled since it had made this number of polls.
func (o *observer) wantNoneClaimed(w *world, stacks []string, polls int) {
	w.t.Helper()
	if claims := o.claimed(w, stacks...); claims > 0 || o.count(w.pool) != polls {
		w.t.Errorf("there were %d claims of %d queued jobs, and the pool polled %d times, want none", claims,
			len(stacks), o.count(w.pool)-polls)
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	inWorld(t, "process", "no job is claimed while the directory of the runner is wrong", func(w *world) {
		v, port := w.countPolls(), agentPort(freePort(w.t))
		good := []string{"token: " + w.pool, port.setting()}
		agent := w.follow(nil, good...)
		w.hold("held", w.poolID)
		stacks := w.queueTen()

		w.save(append(good, "working_directory: "+w.t.TempDir())...)
		w.eventually("the edit is in force", func() bool {
			return strings.Contains(w.once("status", "--config", w.file(), "--json").stdout, `"applied": 2`)
		})
		w.release("held")
		w.eventually("the agent is not ready, or a job was claimed", func() bool {
			return port.readyz() == http.StatusServiceUnavailable || v.claimed(w, stacks...) > 0
		})
		polls := v.count(w.pool)
		agent.waitFor("polling paused: the executor cannot start jobs")
		shown := w.once("status", "--config", w.file())
		if shown.code != cli.ExitFailure || !strings.Contains(
			strings.Join(strings.Fields(shown.stdout), " "), "set working_directory to its directory") {
			w.t.Errorf("cmwa status ends with code %d, want %d and an output that names the hint:\n%s",
				shown.code, cli.ExitFailure, shown.stdout)
		}
		if code := port.healthz(); code != http.StatusOK {
			w.t.Errorf("the agent is not healthy (%d) while it waits for its runner", code)
		}
		v.wantNoneClaimed(w, stacks, polls)

		w.save(good...)
		w.allSucceed(stacks)
		w.eventually("the agent is ready again", func() bool { return port.readyz() == http.StatusOK })
		agent.wantPrinted(1, "polling paused")
	})

	inWorld(t, "docker", "engine that goes down stops the queue until it is up again", func(w *world) {
		v, port := w.countPolls(), agentPort(freePort(w.t))
		socket := filepath.Join(w.t.TempDir(), "engine.sock")
		down := forward(w.t, socket, engineSocket())
		w.t.Cleanup(func() { down() })
		agent := w.agentWith([]string{"DOCKER_HOST=unix://" + socket}, port.setting(), "token: "+w.pool)
		w.runShort("first", w.poolID)
		w.waitRemoved("first")

		down()
		w.eventually("the agent is not ready", func() bool { return port.readyz() == http.StatusServiceUnavailable })
		polls := v.count(w.pool)
		agent.waitFor("cannot reach the Docker engine at unix://" + socket)
		stacks := w.queueTen()
		v.wantNoneClaimed(w, stacks, polls)

		down = forward(w.t, socket, engineSocket())
		w.allSucceed(stacks)
	})
}

// TestQueueWithoutNetwork checks that an agent claims no job while its configuration names
// a network that the engine does not have.
func TestQueueWithoutNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	v := w.countPolls()
	stacks := w.queueTen()
	config := filepath.Join(w.directory, "agent.yaml")
	agent := w.agent("docker: {network: cmwa-none}")
	w.eventually("the problem is logged, or a job was claimed", func() bool {
		return strings.Contains(agent.output(), "create it, or change docker.network") || v.claimed(w, stacks...) > 0
	})
	if claims := v.claimed(w, stacks...); claims > 0 {
		t.Errorf("there were %d claims of 10 queued jobs, want none", claims)
	}
	text, err := os.ReadFile(config)
	w.must(err)
	w.replace(config, strings.Replace(string(text), "docker: {network: cmwa-none}", "docker: {network: bridge}", 1))
	w.allSucceed(stacks)
}
