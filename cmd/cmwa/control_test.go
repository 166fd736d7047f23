package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile/status"
)

// control runs cmwa with a command for a running agent, checks its exit code, and returns its
// output.
func (w *world) control(code int, args ...string) string {
	w.t.Helper()
	p := w.start("control", nil, "cmwa", args...)
	p.exit(code)
	return p.output()
}

func TestControlPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p, port := w.countPolls(), w.pools(2), agentPort(freePort(t))
	lines := []string{
		"pools: [{name: blue, token: " + p[0].token + "}, {name: green, token: " + p[1].token + "}]",
		port.setting(), "max_concurrent_workflows: 2",
	}
	agent := w.follow(nil, lines...)
	w.hold("held", p[0].id)

	// An unknown pool.
	if text := w.control(cli.ExitUsage, "pause", "--config", w.file(), "bleu"); !strings.Contains(text,
		"no pool bleu: did you mean blue? (pools: blue, green)") {
		t.Errorf("unknown pool: %s", text)
	}

	// Another configuration with the same state directory.
	other := filepath.Join(w.directory, "other.yaml")
	w.replace(other, w.content(lines...))
	if text := w.control(cli.ExitUsage, "pause", "--config", other, "blue"); !strings.Contains(text,
		"no agent runs with "+other) || !strings.Contains(text, fmt.Sprintf("configuration file %q", w.file())) {
		t.Errorf("another configuration: %s", text)
	}

	// The paused pool does not poll, also after a reload, and the other pool polls.
	if text := w.control(cli.ExitOK, "pause", "--config", w.file(), "blue"); text !=
		"pool blue paused: it claims no jobs until cmwa resume (running jobs: 1)\n" {
		t.Errorf("pause: %s", text)
	}
	agent.waitFor("pool paused by cmwa pause")
	w.eventually("the status shows the pause", func() bool {
		d, err := status.Fetch(t.Context(), port.url("/status"), true)
		w.must(err)
		return slices.ContainsFunc(d.Pools, func(p status.Pool) bool {
			return p.Name == "blue" && p.Phase == "paused" && p.Reason == "paused by cmwa pause"
		})
	})
	w.wantNoPolls(v, p[0].token, p[1].token)
	w.save(append(lines, "log_level: debug")...)
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=2`))
	w.wantNoPolls(v, p[0].token, p[1].token)
	w.queueShort("short", p[0].id)
	w.release("held")
	w.wantNoPolls(v, p[0].token, p[1].token)
	if code := port.readyz(); code != http.StatusOK {
		t.Errorf("with a paused pool /readyz is %d, want 200", code)
	}

	// After a restart of the agent the pool is still paused. The pause ends with resume.
	w.kill(agent)
	again := w.follow(nil, lines...)
	again.waitFor("pool paused by cmwa pause")
	w.waitPoll(v, p[1].token)
	w.wantNoPolls(v, p[0].token, p[1].token)
	if text := w.control(cli.ExitOK, "resume", "--config", w.file(), "blue"); text !=
		"pool blue resumed: it claims jobs\n" {
		t.Errorf("resume: %s", text)
	}
	w.await("short", "succeeded")
	again.signal(syscall.SIGTERM)
	again.exit(cli.ExitOK)
	if text := w.control(cli.ExitUsage, "pause", "--config", w.file(), "blue"); !strings.Contains(text,
		"no agent runs with ") {
		t.Errorf("without an agent: %s", text)
	}
}

func TestControlPauseCompletion(t *testing.T) {
	config := fileOf(t, "agent.yaml", "token: pul-a\n")
	agent := runningAgent(t, config)
	for text, want := range map[string]string{"": "blue\ngreen\n", "b": "blue\n", "x": ""} {
		if got := cmwa([]string{agent}, "__complete", "pause", "--config", config, text); got.stdout != want {
			t.Errorf("%q: %+v, want %q", text, got, want)
		}
	}
	none := "PULUMI_AGENT_STATE_DIRECTORY=" + t.TempDir()
	if got := cmwa([]string{none}, "__complete", "resume", "--config", config, ""); got != (output{}) {
		t.Errorf("without an agent: %+v", got)
	}
}

func TestControlDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port := agentPort(freePort(t))
	agent := w.follow(nil, "token: "+w.pool, port.setting(), "shutdown_timeout: 1h")
	w.hold("held", w.poolID)
	for _, want := range []string{"the agent claims no more jobs; running jobs (1) may finish until 20",
		"the agent is draining already; running jobs (1) may finish until 20"} {
		if text := w.control(cli.ExitOK, "drain", "--config", w.file()); !strings.HasPrefix(text, want) {
			t.Errorf("drain: %s, want %s", text, want)
		}
	}
	agent.waitFor("stopping: no new jobs")
	if code := port.readyz(); code != http.StatusServiceUnavailable {
		t.Errorf("while the agent drains, /readyz is %d, want 503", code)
	}

	// A TERM after the drain, such as that of a supervisor, stops no job.
	agent.signal(syscall.SIGTERM)
	waiter := w.start("control", nil, "cmwa", "drain", "--config", w.file(), "--wait")
	waiter.waitFor("draining already")
	if agent.ends(time.Second) || waiter.ends(0) {
		t.Errorf("the agent or cmwa drain --wait ended before the job:\n%s", agent.output())
	}
	w.release("held")
	agent.exit(cli.ExitOK)
	agent.waitFor(`agent stopped reason="cmwa drain"`)
	waiter.exit(cli.ExitOK)
	waiter.waitFor("the agent has ended")
	if _, err := os.Lstat(filepath.Join(w.directory, "state", "cmwa", "control")); !os.IsNotExist(err) {
		t.Errorf("the agent has not removed its socket (%v)", err)
	}
}

// TestSignalsClaimInFlight stops an agent after the service has answered its poll with a job,
// and before the agent gets the response.
func TestSignalsClaimInFlight(t *testing.T) {
	t.Parallel()
	// story sends one signal for each condition, and waits until the condition holds. Signals that
	// arrive together would count as one.
	story := func(t *testing.T, conditions ...func(status.Document) bool) *world {
		t.Parallel()
		w := newWorld(t, "process")
		held, release := w.holdClaims()
		port := agentPort(freePort(t))
		agent := w.agent(port.setting())
		w.queue("one", oneStep("true"))
		<-held
		for i, condition := range conditions {
			agent.signal(syscall.SIGTERM)
			w.eventually(fmt.Sprint("the agent has handled signal ", i+1), func() bool {
				d, err := status.Fetch(t.Context(), port.url("/status"), true)
				return err == nil && condition(d)
			})
		}
		release()
		agent.exit(cli.ExitOK)
		return w
	}
	drains := func(d status.Document) bool { return d.Stopping && !d.Ready && !d.StopAt.IsZero() }
	stops := func(d status.Document) bool { return d.Stopping && d.StopAt.IsZero() }
	t.Run("after the first signal the job runs", func(t *testing.T) {
		w := story(t, drains)
		w.await("one", "succeeded")
	})
	t.Run("after the second signal the job is reported as failed", func(t *testing.T) {
		w := story(t, drains, stops)
		w.await("one", "failed")
		w.wantSteps("one", "failed", "not-started")
		w.wantLog("one", "the agent is stopping")
	})
}

// holdClaims puts a proxy in front of the service. If the response to a poll contains a job, the
// proxy delays this response until release is called. Held is closed when the first such response
// arrives.
func (w *world) holdClaims() (held <-chan struct{}, release func()) {
	w.t.Helper()
	has, gate := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(has) })
	_, w.url = w.front(func(*http.Request) {}, func(r *http.Response) error {
		if isPoll(r.Request) && r.StatusCode == http.StatusOK {
			first()
			<-gate
		}
		return nil
	})
	release = sync.OnceFunc(func() { close(gate) })
	w.t.Cleanup(release)
	return has, release
}

// TestSignalsThird sends three signals in a row. The step of the job ignores SIGINT and
// SIGTERM, so the job continues after the agent has exited. The next agent adopts the job.
func TestSignalsThird(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		w.queue("one", oneStep("trap 'echo asked' INT TERM; echo running\n"+
			"n=0; while [ $n -lt 400 ]; do n=$((n+1)); sleep 0.02; done; echo finished"))
		w.waitStarted("one")
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping: no new jobs")
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping job")
		agent.signal(syscall.SIGTERM)
		agent.exit(128 + int(syscall.SIGTERM))
		w.wantStatus("one", "running")
		again := w.agent()
		again.waitFor("job resumed")
		w.await("one", "succeeded", "failed")
		log := w.log("one")
		if started, finished := strings.Count(log, "\nrunning\n"), strings.Count(log, "\nfinished\n"); started != 1 ||
			finished != 1 {
			t.Errorf("the step has started %d times and finished %d times:\n%s", started, finished, log)
		}
		again.waitForMatch(regexp.MustCompile(`job (succeeded|failed)`))
		w.waitRemoved("one")
	})
}
