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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/logging"
	"github.com/cmwa-project/cmwa/reconcile"
)

func TestSignalsHangUpWhileDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	p, port := w.pools(1), freePort(t)
	agent := w.follow(nil, "token: "+p[0].token, fmt.Sprint("http_server_port: ", port))
	w.hold("held", p[0].id)
	agent.signal(syscall.SIGTERM)
	agent.waitFor("stopping: no new jobs, running jobs may finish; a second signal stops them")
	for range 3 {
		agent.signal(syscall.SIGHUP)
		if code := probe(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)); code != http.StatusOK {
			t.Errorf("/healthz is %d after a HUP", code)
		}
	}
	w.release("held")
	agent.exit(cli.ExitOK)
	agent.waitFor("agent stopped")
}

// TestSignalsEditWhileDraining edits the configuration of an agent that waits for its job
// after a TERM. Of the edited keys, only shutdown_timeout takes effect.
func TestSignalsEditWhileDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	p, port := w.pools(1), fmt.Sprint("http_server_port: ", freePort(t))
	token := "token: " + p[0].token
	agent := w.follow(nil, token, port, "shutdown_timeout: 1h")
	w.hold("held", p[0].id)
	agent.signal(syscall.SIGTERM)
	agent.waitFor("stopping: no new jobs, running jobs may finish; a second signal stops them")

	w.save(token, port, "shutdown_timeout: 2h", "max_concurrent_workflows: 3")
	agent.waitForMatch(regexp.MustCompile(`shutdown_timeout changed.* limit=2h0m0s left=(1h59|2h0)m`))
	agent.waitFor("only shutdown_timeout is applied now")
	w.save("token: [")
	agent.waitFor("configuration rejected")
	w.save(token, port, "shutdown_timeout: 0s")
	agent.exit(cli.ExitOK)
	w.await("held", "failed")
	if output := agent.output(); strings.Contains(output, "tune pool") ||
		!strings.Contains(output, "reason=shutdown_timeout") {
		t.Errorf("another key was applied, or the log does not name the reason of the stop:\n%s", output)
	}
}

// TestSignalsWhileExiting sends signals until the process has exited: none of them may change its
// exit code, by which a supervisor decides whether the agent has failed.
func TestSignalsWhileExiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.follow(nil, "token: "+w.pools(1)[0].token)
	agent.signal(syscall.SIGTERM)
	for !agent.ends(0) {
		agent.signal(syscall.SIGHUP)
	}
	agent.exit(cli.ExitOK)
}

// newFullPipe returns a full pipe, and the number of bytes in it. A write to the pipe blocks
// until bytes are read from it.
func newFullPipe(t *testing.T) (out, in *os.File, filling int) {
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

// TestSignalsHangUpWhileStarting sends a HUP to an agent that blocks at the first line of its
// log. At that time the HTTP port is open, and the agent does not watch its configuration yet.
func TestSignalsHangUpWhileStarting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p, port := w.countPolls(), w.pools(1), freePort(t)
	file, output := filepath.Join(w.directory, "agent.yaml"), filepath.Join(w.directory, "held.log")
	w.replace(file, w.content("token: "+p[0].token, fmt.Sprint("http_server_port: ", port)))
	out, in, filling := newFullPipe(t)
	agent := &program{
		w: w, cmd: exec.Command(filepath.Join(w.bin, "cmwa"), "run", "--config", file), path: output,
		done: make(chan struct{}),
	}
	agent.cmd.Dir, agent.cmd.Env, agent.cmd.Stderr = w.directory, append(os.Environ(), w.environ()...), in
	w.must(os.WriteFile(output, nil, 0o600))
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
		file, err := os.OpenFile(output, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, skipped := io.CopyN(io.Discard, out, int64(filling))
			_, err = io.Copy(file, out)
			err = errors.Join(skipped, err, file.Close())
		}
		copied <- err
	}()
	agent.waitFor("converged")
	w.waitPoll(v, p[0].token)
	agent.signal(syscall.SIGTERM)
	agent.exit(cli.ExitOK)
	w.must(<-copied)
	if text := agent.output(); strings.Contains(text, "DATA RACE") {
		t.Errorf("a data race:\n%s", text)
	}
}

// watched returns a daemon, and a counter of how often the sink of its log was closed.
func watched(t *testing.T, spec reconcile.ProcessSpec) (p *daemon, closed *int) {
	t.Helper()
	log := logging.New(io.Discard, "text")
	p, err := newDaemon(t.Context(), log, spec)
	if err != nil {
		t.Fatal(err)
	}
	closed = new(int)
	log.OnClose(func() { *closed++ })
	return p, closed
}

func TestDaemonPortTaken(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	to := spec
	to.HTTPPort = taken.Addr().(*net.TCPAddr).Port
	for range 3 { // each attempt fails
		if _, err := p.prepare(t.Context(), spec, to); err == nil {
			t.Fatal("a port that is in use was opened")
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
		t.Errorf("the sink was closed %d times, although it is still in use", *closed)
	}
	if p.close(); *closed != 1 {
		t.Errorf("at the end the sink was closed %d times, want once", *closed)
	}
}

func TestDaemonLogUnavailable(t *testing.T) {
	spec := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	p, closed := watched(t, spec)
	to := spec
	to.LogLevel, to.HTTPPort = "loud", freePort(t)
	if _, err := p.prepare(t.Context(), spec, to); err == nil {
		t.Fatal("a log with an unknown level was opened")
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

func TestDaemon(t *testing.T) {
	t.Parallel()
	t.Run("a signal during the start does not make the listener fail", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // the resolver may return an address although the context has ended
			p, err := newDaemon(ctx, logging.New(io.Discard, "text"), reconcile.ProcessSpec{
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
