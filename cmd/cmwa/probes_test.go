package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// probedThreshold is the health_threshold of these tests: many polling intervals.
const probedThreshold = 2 * time.Second

// probes sends requests to /healthz and /readyz of an agent.
type probes struct {
	w *world
	agentPort
}

// settings returns these lines of a configuration, and those that the tests of probes need.
func (p probes) settings(lines ...string) []string {
	return append(lines, p.setting(), fmt.Sprint("health_threshold: ", probedThreshold),
		"polling_interval: 100ms", "job_status_loop_interval: 500ms")
}

// alive blocks until span has passed and /readyz returns the status ready. Until then,
// /healthz must return 200.
func (p probes) alive(span time.Duration, ready int) {
	p.w.t.Helper()
	started := time.Now()
	p.w.eventually(fmt.Sprintf("/readyz is %d, after %s", ready, span), func() bool {
		if code := p.healthz(); code != http.StatusOK {
			p.w.t.Fatalf("/healthz is %d after %s\n%s", code, time.Since(started), p.w.logs())
		}
		return time.Since(started) >= span && p.readyz() == ready
	})
}

// neverReady checks for the time span that the agent is alive and not ready.
func (p probes) neverReady(span time.Duration) {
	p.w.t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); <-time.After(lookEvery) {
		if healthz, readyz := p.healthz(), p.readyz(); healthz != http.StatusOK ||
			readyz != http.StatusServiceUnavailable {
			p.w.t.Fatalf("/healthz is %d and /readyz is %d, want 200 and 503\n%s", healthz, readyz, p.w.logs())
		}
	}
}

// status runs cmwa status, and checks its exit code and what it prints.
func (p probes) status(code int, parts ...string) {
	p.w.t.Helper()
	result := cmwa(nil, "status", "--url", p.url(""))
	if result.code != code {
		p.w.t.Errorf("cmwa status ends with %d, want %d", result.code, code)
	}
	text := strings.Join(strings.Fields(result.stdout), " ")
	for _, part := range parts {
		if !strings.Contains(text, part) {
			p.w.t.Errorf("cmwa status does not print %q:\n%s", part, result.stdout)
		}
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()

	inWorld(t, "process", "an agent with a refused token in one of two pools is alive and not ready", func(w *world) {
		pools := w.pools(2)
		p := probes{w, agentPort(freePort(w.t))}
		two := func(token string) []string {
			return p.settings("pools:", "  - name: good", "    token: "+
				pools[0].token, "  - name: bad", "    token: "+token)
		}
		agent := w.follow(nil, two(pools[1].token)...)
		p.alive(0, http.StatusOK)
		p.status(cli.ExitOK, "healthy, ready")

		w.save(two("pul-wrong")...)
		agent.waitFor("service rejected the token")
		p.alive(3*probedThreshold, http.StatusServiceUnavailable)
		p.status(cli.ExitFailure, "healthy, NOT READY", "not ready: pool bad: no poll has succeeded since",
			"problem: service rejected the token")
		w.runShort("one", pools[0].id) // the other pool continues

		w.save(two(pools[1].token)...)
		p.alive(0, http.StatusOK)
		p.status(cli.ExitOK)
	})

	inWorld(t, "process", "an agent that starts with a refused token is alive and not ready", func(w *world) {
		p := probes{w, agentPort(freePort(w.t))}
		w.must(os.MkdirAll(filepath.Dir(w.file()), 0o700))
		w.save(p.settings("token: pul-wrong")...)
		agent := w.start("agent", nil, "cmwa", "run", "--config", w.file())
		agent.waitFor("service rejected the token")
		agent.waitFor("PULUMI_AGENT_TOKEN")
		p.neverReady(2 * probedThreshold)
		p.status(cli.ExitFailure, "not ready: pool default: no poll has succeeded yet")
		agent.wantPrinted(0, "pul-wrong")
		w.save(p.settings("token: " + w.pool)...)
		p.alive(0, http.StatusOK)
	})

	inWorld(t, "docker", "an agent whose engine is down is alive and not ready", func(w *world) {
		p := probes{w, agentPort(freePort(w.t))}
		socket := filepath.Join(w.t.TempDir(), "engine.sock")
		agent := w.agentWith([]string{"DOCKER_HOST=unix://" + socket}, p.settings()...)
		first := agent.waitForMatch(regexp.MustCompile(`.*cannot reach the Docker engine at .*`))
		for _, want := range []string{"unix://" + socket, "start it"} {
			if !strings.Contains(first, want) {
				w.t.Errorf("the first message lacks %q: %s", want, first)
			}
		}
		p.neverReady(2 * probedThreshold)
		p.status(cli.ExitFailure, "healthy, NOT READY", "not ready: pool default: cannot reach the Docker engine")
		w.must(os.Symlink(engineSocket(), socket))
		w.runShort("one", w.poolID)
	})

	inWorld(t, "process", "an agent that has never reached the service is alive and not ready", func(w *world) {
		up, p := w.url, probes{w, agentPort(freePort(w.t))}
		w.url = fmt.Sprintf("http://127.0.0.1:%d", freePort(w.t))
		agent := w.agent(p.settings("circuit_breaker_failures: 1", "circuit_breaker_timeout: 1s",
			"request_retry_count: 0")...)
		agent.waitForMatch(regexp.MustCompile(
			"circuit breaker opened.*cannot reach " + regexp.QuoteMeta(w.url) + ".*service_url"))
		p.neverReady(2 * probedThreshold)
		p.status(cli.ExitFailure, "not ready: pool default: no poll has succeeded yet", "problem: cannot reach")
		stop := forward(w.t, strings.TrimPrefix(w.url, "http://"), strings.TrimPrefix(up, "http://"))
		defer stop()
		agent.waitFor("polling resumed")
		p.alive(0, http.StatusOK)
		p.status(cli.ExitOK)
		w.url = up
	})
}
