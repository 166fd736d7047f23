package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// engineLink forwards connections of a Unix socket to the Docker engine, from a call of up
// to the next call of down.
type engineLink struct {
	t        *testing.T
	socket   string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	all      sync.WaitGroup
}

func newEngineLink(t *testing.T) *engineLink {
	l := &engineLink{t: t, socket: filepath.Join(t.TempDir(), "engine.sock"), conns: map[net.Conn]bool{}}
	t.Cleanup(l.down)
	return l
}

// up opens the socket, so that clients can reach the engine.
func (l *engineLink) up() {
	l.t.Helper()
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		l.t.Fatal(err)
	}
	l.listener = listener
	l.all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", engineSocket())
			if err != nil {
				_ = in.Close()
				continue
			}
			l.mu.Lock()
			l.conns[in], l.conns[out] = true, true
			l.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				l.all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					if half, ok := pair[0].(interface{ CloseWrite() error }); ok {
						_ = half.CloseWrite()
					}
				})
			}
		}
	})
}

// down closes every connection and the socket.
func (l *engineLink) down() {
	if l.listener == nil {
		return
	}
	_ = l.listener.Close()
	l.listener = nil
	l.mu.Lock()
	for conn := range l.conns {
		_ = conn.Close()
	}
	clear(l.conns)
	l.mu.Unlock()
	l.all.Wait()
}

// claimsOf returns how often the jobs of these stacks were claimed.
func (v *pollCounter) claimsOf(w *world, stacks []string) (count int) {
	for _, stack := range stacks {
		count += v.claimed(w, stack)
	}
	return count
}

func TestQueue(t *testing.T) {
	t.Parallel()
	t.Run("no job is claimed while the directory of the runner is wrong, and afterwards all run", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "process")
		v := w.countPolls()
		port := freePort(t)
		url := fmt.Sprintf("http://127.0.0.1:%d", port)
		good := []string{"token: " + w.pool, fmt.Sprint("http_server_port: ", port)}
		agent := w.follow(nil, good...)
		w.hold("held", w.poolID)
		var stacks []string
		for i := range 10 {
			stack := fmt.Sprint("queued-", i)
			w.queueShort(stack, w.poolID)
			stacks = append(stacks, stack)
		}

		w.save(append(good, "working_directory: "+t.TempDir())...)
		w.eventually("the edit is in force", func() bool {
			return strings.Contains(w.once("status", "--config", w.file(), "--json").stdout, `"applied": 2`)
		})
		w.release("held")
		w.eventually("the agent is not ready, or a job was claimed",
			func() bool { return probe(url+"/readyz") == 503 || v.claimsOf(w, stacks) > 0 })
		polls := v.count(w.pool)
		agent.waitFor("polling paused: the executor cannot start jobs")
		shown := w.once("status", "--config", w.file())
		if shown.code != cli.ExitFailure || !strings.Contains(
			strings.Join(strings.Fields(shown.stdout), " "), "set working_directory to its directory") {
			t.Errorf("cmwa status ends with code %d, want %d and an output that names the hint:\n%s",
				shown.code, cli.ExitFailure, shown.stdout)
		}
		if code := probe(url + "/healthz"); code != 200 {
			t.Errorf("the agent is not healthy (%d) while it waits for its runner", code)
		}
		if claims := v.claimsOf(w, stacks); claims > 0 || v.count(w.pool) != polls {
			t.Errorf("there were %d claims of 10 queued jobs, and the pool polled %d times, want none", claims,
				v.count(w.pool)-polls)
		}

		w.save(good...)
		for _, stack := range stacks {
			if status := w.await(stack, "succeeded", "failed", "skipped"); status != "succeeded" {
				t.Errorf("%s is %s", stack, status)
			}
		}
		w.eventually("the agent is ready again", func() bool { return probe(url+"/readyz") == 200 })
		if paused := strings.Count(agent.output(), "polling paused"); paused != 1 {
			t.Errorf("the pause is logged %d times, want once", paused)
		}
	})

	t.Run("engine that goes down stops the queue until it is up again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "docker")
		v := w.countPolls()
		link := newEngineLink(t)
		link.up()
		port := freePort(t)
		agent := w.agentWith([]string{"DOCKER_HOST=unix://" + link.socket}, fmt.Sprint("http_server_port: ", port),
			"token: "+w.pool)
		w.queue("first", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("first", "succeeded")
		w.eventually("the first job is removed", func() bool { return len(w.containers("first")) == 0 })

		link.down()
		w.eventually("the agent is not ready",
			func() bool { return probe(fmt.Sprintf("http://127.0.0.1:%d/readyz", port)) == 503 })
		polls := v.count(w.pool)
		agent.waitFor("cannot reach the Docker engine at unix://" + link.socket)
		var stacks []string
		for i := range 10 {
			stack := fmt.Sprint("queued-", i)
			w.queue(stack, order{Steps: []step{{Name: "a", Run: "true"}}})
			stacks = append(stacks, stack)
		}
		if claims := v.claimsOf(w, stacks); claims > 0 || v.count(w.pool) != polls {
			t.Errorf("without an engine, there were %d claims of 10 queued jobs and %d polls, want none",
				claims, v.count(w.pool)-polls)
		}

		link.up()
		for _, stack := range stacks {
			if status := w.await(stack, "succeeded", "failed", "skipped"); status != "succeeded" {
				t.Errorf("%s is %s:\n%s", stack, status, w.log(stack))
			}
		}
	})
}

// TestQueueWithoutNetwork checks that an agent claims no job while its configuration names
// a network that the engine does not have.
func TestQueueWithoutNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	v := w.countPolls()
	var stacks []string
	for i := range 10 {
		stack := fmt.Sprint("queued-", i)
		w.queue(stack, order{Steps: []step{{Name: "a", Run: "true"}}})
		stacks = append(stacks, stack)
	}
	config := filepath.Join(w.directory, "agent.yaml")
	agent := w.agent("docker: {network: cmwa-none}")
	w.eventually("the problem is logged, or a job was claimed", func() bool {
		return strings.Contains(agent.output(), "create it, or change docker.network") || v.claimsOf(w, stacks) > 0
	})
	if claims := v.claimsOf(w, stacks); claims > 0 {
		t.Errorf("there were %d claims of 10 queued jobs, want none", claims)
	}
	text, err := os.ReadFile(config)
	w.must(err)
	w.replace(config, strings.Replace(string(text), "docker: {network: cmwa-none}", "docker: {network: bridge}", 1))
	for _, stack := range stacks {
		w.await(stack, "succeeded")
	}
}
