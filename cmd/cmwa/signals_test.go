package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	p, port := w.pools(1), agentPort(freePort(t))
	agent := w.follow(nil, "token: "+p[0].token, port.setting())
	w.hold("held", p[0].id)
	agent.signal(syscall.SIGTERM)
	agent.waitFor("stopping: no new jobs, running jobs may finish; a second signal stops them")
	for range 3 {
		agent.signal(syscall.SIGHUP)
		if code := port.healthz(); code != http.StatusOK {
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
	p, port := w.pools(1), agentPort(freePort(t)).setting()
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
	agent.waitFor("reason=shutdown_timeout")
	agent.wantPrinted(0, "tune pool")
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
	noError(t, err)
	t.Cleanup(func() { _ = out.Close(); _ = in.Close() })
	noError(t, in.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
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
	v, p, port := w.countPolls(), w.pools(1), agentPort(freePort(t))
	file, output := filepath.Join(w.directory, "agent.yaml"), filepath.Join(w.directory, "held.log")
	w.replace(file, w.content("token: "+p[0].token, port.setting()))
	out, in, filling := newFullPipe(t)
	w.must(os.WriteFile(output, nil, 0o600))
	cmd := exec.Command(filepath.Join(w.bin, "cmwa"), "run", "--config", file)
	cmd.Dir, cmd.Stderr = w.directory, in
	agent := w.launch(cmd, nil, output)
	w.must(in.Close())
	t.Cleanup(func() { agent.signal(syscall.SIGKILL); <-agent.done })

	w.eventually("the health port is open", func() bool { return port.healthz() != 0 || agent.ends(0) })
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
	agent.wantPrinted(0, "DATA RACE")
}

// daemonSpec is a valid specification, without a listener.
var daemonSpec = reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}

// withPort returns daemonSpec with a port of the HTTP server.
func withPort(port int) reconcile.ProcessSpec {
	spec := daemonSpec
	spec.HTTPPort = port
	return spec
}

// watched returns a daemon with daemonSpec, and a function that checks how often the sink of its
// log was closed.
func watched(t *testing.T) (p *daemon, wantClosed func(times int)) {
	t.Helper()
	log := logging.New(io.Discard, "text")
	p, err := newDaemon(t.Context(), log, daemonSpec)
	noError(t, err)
	closed := 0
	log.OnClose(func() { closed++ })
	return p, func(times int) {
		t.Helper()
		if closed != times {
			t.Errorf("the sink of the log was closed %d times, want %d", closed, times)
		}
	}
}

// wantFree checks that a port is free.
func wantFree(t *testing.T, port int) {
	t.Helper()
	listener, err := listen(t.Context(), "", port, nil)
	if err != nil {
		t.Fatal("the port is still open: ", err)
	}
	_ = listener.Close()
}

func TestDaemonPortTaken(t *testing.T) {
	p, wantClosed := watched(t)
	taken, err := net.Listen("tcp", ":0")
	noError(t, err)
	defer taken.Close()
	to := withPort(taken.Addr().(*net.TCPAddr).Port)
	for range 3 { // each attempt fails
		if _, err := p.prepare(t.Context(), daemonSpec, to); err == nil {
			t.Fatal("a port that is in use was opened")
		}
	}
	wantClosed(0)
	noError(t, taken.Close())
	change, err := p.prepare(t.Context(), daemonSpec, to)
	noError(t, err)
	change.Commit()
	wantClosed(0) // it is still in use
	p.close()
	wantClosed(1)
}

func TestDaemonLogUnavailable(t *testing.T) {
	p, wantClosed := watched(t)
	to := withPort(freePort(t))
	to.LogLevel = "loud"
	if _, err := p.prepare(t.Context(), daemonSpec, to); err == nil {
		t.Fatal("a log with an unknown level was opened")
	}
	wantFree(t, to.HTTPPort)
	wantClosed(0)
}

func TestDaemon(t *testing.T) {
	t.Parallel()
	t.Run("a signal during the start does not make the listener fail", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // the resolver may return an address although the context has ended
			spec := withPort(freePort(t))
			spec.HTTPAddress = "localhost"
			p, err := newDaemon(ctx, logging.New(io.Discard, "text"), spec)
			noError(t, err)
			p.close()
		}
	})
	t.Run("a discarded change closes its listener and not the sink in use", func(t *testing.T) {
		p, wantClosed := watched(t)
		to := withPort(freePort(t))
		change, err := p.prepare(t.Context(), daemonSpec, to)
		noError(t, err)
		if l, err := listen(t.Context(), "", to.HTTPPort, nil); err == nil {
			_ = l.Close()
			t.Fatal("the prepared listener is not open")
		}
		change.Discard()
		wantFree(t, to.HTTPPort)
		wantClosed(0)
	})
}
