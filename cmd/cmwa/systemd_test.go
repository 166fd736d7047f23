package main

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRunSystemd starts an agent as a unit with Type=notify and WatchdogSec= does, and reads what it sends to systemd.
func TestRunSystemd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	address := filepath.Join(w.directory, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	w.must(err)
	defer socket.Close()
	read := func() string {
		t.Helper()
		w.must(socket.SetReadDeadline(time.Now().Add(time.Minute)))
		text := make([]byte, 100)
		n, err := socket.Read(text)
		w.must(err)
		return string(text[:n])
	}
	want := func(messages ...string) {
		t.Helper()
		for _, message := range messages {
			if got := read(); got != message {
				t.Fatalf("the agent sends %q, want %q", got, message)
			}
		}
	}
	agent := w.agentWith([]string{"NOTIFY_SOCKET=" + address, "WATCHDOG_USEC=200000"}, "shutdown_timeout: 10m")

	// 1. The agent is ready, and responds.
	want("READY=1", "WATCHDOG=1", "WATCHDOG=1")

	// 2. A job has no access to the socket of systemd.
	w.queue("shows", oneStep("env").in(w.poolID))
	w.await("shows", "succeeded")
	if log := w.log("shows"); strings.Contains(log, "NOTIFY") || strings.Contains(log, "WATCHDOG") {
		t.Errorf("the job has variables of systemd:\n%s", log)
	}

	// 3. A stopping agent responds while it waits for a job.
	w.queueHeld("held", w.poolID)
	w.waitStarted("held")
	agent.signal(syscall.SIGTERM)
	for read() != "STOPPING=1" {
	}
	want("WATCHDOG=1", "WATCHDOG=1")
	w.release("held")
	agent.exit(0)
}
