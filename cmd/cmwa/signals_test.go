package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
)

func TestAHangUpWhileJobsMayFinishLeavesThemAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	p, port := w.pools(1), freePort(t)
	agent := w.follow(nil, "token: "+p[0].token, fmt.Sprint("http_server_port: ", port))
	w.hold("held", p[0].id)
	agent.signal(syscall.SIGTERM)
	agent.says("nothing new is claimed")
	for range 3 {
		agent.signal(syscall.SIGHUP)
		if code := probe(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)); code != http.StatusOK {
			t.Errorf("health answers %d after a HUP", code)
		}
	}
	w.release("held")
	agent.exit(cli.ExitOK)
	agent.says("agent has stopped")
}

// fullPipe is a pipe into which nothing more goes until it is read from, and how
// many bytes fill it: who writes to it stays where it is.
func fullPipe(t *testing.T) (out, in *os.File, filling int) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close(); _ = in.Close() })
	if err := in.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if filling, err = in.Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe does not fill: %v", err)
	}
	return out, in, filling
}

// The agent is held at its first line of the log: the health port is open then, and
// nothing follows the configuration yet.
func TestAHangUpWhileTheAgentStartsDoesNotEndIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p, port := w.turnstile(), w.pools(1), freePort(t)
	file, said := filepath.Join(w.folder, "agent.yaml"), filepath.Join(w.folder, "held.log")
	w.replace(file, w.content("token: "+p[0].token, fmt.Sprint("http_server_port: ", port)))
	out, in, filling := fullPipe(t)
	agent := &program{w: w, cmd: exec.Command(filepath.Join(w.bin, "cmwa"), "run", "--config", file), path: said, done: make(chan struct{})}
	agent.cmd.Dir, agent.cmd.Env, agent.cmd.Stderr = w.folder, append(os.Environ(), w.environ()...), in
	w.must(os.WriteFile(said, nil, 0o600))
	w.must(agent.cmd.Start())
	w.must(in.Close())
	go func() {
		_ = agent.cmd.Wait()
		agent.code = agent.cmd.ProcessState.ExitCode()
		close(agent.done)
	}()
	t.Cleanup(func() { agent.signal(syscall.SIGKILL); <-agent.done })

	w.eventually("the health port is open", func() bool {
		return probe(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)) != 0 || agent.ends(0)
	})
	agent.signal(syscall.SIGHUP)
	copied := make(chan error, 1)
	go func() {
		file, err := os.OpenFile(said, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, skipped := io.CopyN(io.Discard, out, int64(filling))
			_, err = io.Copy(file, out)
			err = errors.Join(skipped, err, file.Close())
		}
		copied <- err
	}()
	agent.says("converged")
	w.polls(v, p[0].token)
	agent.signal(syscall.SIGTERM)
	agent.exit(cli.ExitOK)
	w.must(<-copied)
	if text := agent.output(); strings.Contains(text, "DATA RACE") {
		t.Errorf("a data race:\n%s", text)
	}
}

// watched is a shell whose log's sink counts how often it is closed.
func watched(t *testing.T, spec reconcile.ProcessSpec) (p *shell, closed *int) {
	t.Helper()
	log := newSwitch(io.Discard)
	p, err := newShell(t.Context(), log, spec)
	if err != nil {
		t.Fatal(err)
	}
	closed = new(int)
	counting := *log.current.Load()
	counting.close = func() { *closed++ }
	log.current.Store(&counting)
	return p, closed
}

func TestAHealthPortThatIsTakenLeavesTheLogsSinkOpen(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	to := spec
	to.HTTPPort = taken.Addr().(*net.TCPAddr).Port
	for range 3 { // it is tried again and again
		if _, err := p.prepare(t.Context(), spec, to); err == nil {
			t.Fatal("a taken port is opened")
		}
	}
	if *closed > 0 {
		t.Errorf("the sink in use was closed %d times", *closed)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	change, err := p.prepare(t.Context(), spec, to)
	if err != nil {
		t.Fatal(err)
	}
	if change.Commit(); *closed > 0 {
		t.Errorf("a sink that stays in use was closed %d times", *closed)
	}
	if p.close(); *closed != 1 {
		t.Errorf("at the end the sink was closed %d times", *closed)
	}
}

func TestALogSinkThatCannotBeOpenedLeavesTheNewPortFree(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	to := spec
	to.LogLevel, to.HTTPPort = "loud", freePort(t)
	if _, err := p.prepare(t.Context(), spec, to); err == nil {
		t.Fatal("a log of no known level is opened")
	}
	free, err := listen(t.Context(), "", to.HTTPPort, nil)
	if err != nil {
		t.Fatal("the port is still open: ", err)
	}
	_ = free.Close()
	if *closed > 0 {
		t.Errorf("the sink in use was closed %d times", *closed)
	}
}

func TestShell(t *testing.T) {
	t.Run("a signal during the start does not make the listener fail", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // the resolver may be faster than the end of the context
			p, err := newShell(ctx, newSwitch(io.Discard), reconcile.ProcessSpec{
				LogLevel: "info", LogFormat: "text", HTTPAddress: "localhost", HTTPPort: freePort(t),
			})
			if err != nil {
				t.Fatal(err)
			}
			p.close()
		}
	})
	t.Run("a discarded change closes its listener and not the sink in use", func(t *testing.T) {
		spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
		p, closed := watched(t, spec)
		to := spec
		to.HTTPPort = freePort(t)
		change, err := p.prepare(t.Context(), spec, to)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := listen(t.Context(), "", to.HTTPPort, nil); err == nil {
			_ = l.Close()
			t.Fatal("the prepared listener is not open")
		}
		change.Discard()
		free, err := listen(t.Context(), "", to.HTTPPort, nil)
		if err != nil {
			t.Fatal("the port is still open: ", err)
		}
		_ = free.Close()
		if *closed > 0 {
			t.Errorf("the sink in use was closed %d times", *closed)
		}
	})
}
