package main

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestRunPage follows the page of a real agent until the agent stops.
func TestRunPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port := agentPort(freePort(t))
	agent := w.agent(port.setting())
	agent.waitFor("converged")
	response, err := http.Get(port.url("/page/events"))
	w.must(err)
	defer response.Body.Close()
	events := bufio.NewReader(response.Body)
	until := func(text string) {
		t.Helper()
		for {
			line, err := events.ReadString('\n')
			w.must(err)
			if strings.Contains(line, text) {
				return
			}
		}
	}
	w.hold("held", w.poolID)
	until("<strong>organization/tests/held</strong>")
	w.release("held")
	until("<h2>Ended jobs")

	// The agent ends the stream, and does not wait until it has to close the connection.
	agent.signal(syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("the stream of an agent that stops ends with %v", err)
	}
	agent.exit(0)
}
