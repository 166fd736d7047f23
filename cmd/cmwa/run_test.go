package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// The tests of whole jobs are written in Go. Scripts in testdata/script could not wait for
// conditions at the service, or inspect engines and processes.

// waitRemoved blocks until no container or Pod of a stack's job is left. A process has none.
func (w *world) waitRemoved(stack string) {
	w.t.Helper()
	w.eventually("the container of "+stack+" is removed", func() bool {
		return w.target == "process" || len(w.containers(stack)) == 0
	})
}

// atLocalTargets runs a test with containers and with processes of this machine.
func atLocalTargets(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	at(t, []string{"docker", "process"}, story)
}

// atEachTarget runs a test once for each deploy_target.
func atEachTarget(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	at(t, []string{"docker", "kubernetes", "process"}, story)
}

// at runs a test once for each of these deploy_targets, with these flags of the service.
func at(t *testing.T, targets []string, story func(t *testing.T, w *world), serve ...string) {
	t.Helper()
	for _, target := range targets {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			story(t, newWorld(t, target, serve...))
		})
	}
}

// inWorld runs a subtest with a world of this deploy_target.
func inWorld(t *testing.T, target, name string, story func(w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		story(newWorld(t, target))
	})
}

func TestRunSucceedingDeployment(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one", order{
			Steps: []step{
				{Name: "write", Run: "echo hello $GREETED\necho to stderr >&2\n" +
					"echo later=1 >> \"$PULUMI_ENV_FILE\"\necho kept > kept"},
				{Name: "read", Run: "echo later is $later; cat kept"},
			},
			Env: map[string]any{"GREETED": "world"},
		})
		w.await("one", "succeeded")
		w.wantSteps("one", "succeeded", "succeeded", "succeeded")
		w.wantLog("one", "hello world\nto stderr\n", "$ echo later is $later; cat kept\n", "later is 1\nkept\n")
		w.waitRemoved("one")
	})
}

func TestRunFailingStep(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one", order{Steps: []step{{Name: "a", Run: "echo before; exit 3"}, {Name: "b", Run: "echo never"}}})
		w.await("one", "failed")
		w.wantSteps("one", "succeeded", "failed", "not-started")
		if log := w.log("one"); !strings.Contains(log, "exit code 3") || strings.Contains(log, "never") {
			t.Errorf("the log must name exit code 3, and must not show the second step:\n%s", log)
		}
		w.runShort("two", w.poolID) // the pool still runs jobs
	})
}

func TestRunMissingImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	w.agent()
	started := time.Now()
	w.queue("one", order{Image: "cmwa-test/there-is-none:1", Steps: []step{{Name: "a", Run: "true"}}})
	w.await("one", "failed")
	w.wantSteps("one", "failed", "not-started")
	w.wantLog("one", "cmwa-test/there-is-none:1", "pull_image")
	if took := time.Since(started); took > 30*time.Second {
		t.Errorf("the failure was reported after %s, want at most 30 s", took)
	}
}

func TestRunStepTimeout(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		const run = "trap 'echo asked to stop; exit 1' TERM\necho running\nsleep 600 & wait"
		w.queue("one", order{Steps: []step{{Name: "a", Run: run, Timeout: "3s"}, {Name: "b", Run: "true"}}})
		w.await("one", "failed")
		w.wantSteps("one", "succeeded", "failed", "not-started")
		w.wantLog("one", "asked to stop", "the step took longer than its time limit of 3s and was stopped")
	})
}

func TestRunCancelledJob(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		witness := filepath.Join(t.TempDir(), "ended")
		run := "trap 'echo cancelled > " + witness + "; exit 1' TERM\necho running\nsleep 600 & wait"
		w.queue("one", order{Steps: []step{{Name: "a", Run: run}, {Name: "b", Run: "true"}}})
		w.waitStarted("one")
		w.call(http.MethodPost, w.path("one")+"/cancel", nil, nil)
		w.wantStatus("one", "failed") // immediately
		w.waitRemoved("one")
		if w.target == "process" {
			w.eventually("the step has received TERM", func() bool { _, err := os.Stat(witness); return err == nil })
		}
		w.runShort("two", w.poolID)
		if _, steps := w.status("one"); steps[2] != "not-started" {
			t.Errorf("the steps of the cancelled job are %v", steps)
		}
	})
}

func TestRunConcurrentJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent("max_concurrent_workflows: 4")
		var releases []func()
		for i := range 4 {
			releases = append(releases, w.holdAnywhere(fmt.Sprint("held-", i), w.poolID))
		}
		w.queueShort("fifth", w.poolID)
		w.queueShort("sixth", w.poolID)
		for i := range releases {
			w.wantStatus(fmt.Sprint("held-", i), "running")
		}
		for _, release := range releases {
			release()
		}
		w.await("fifth", "succeeded")
		w.await("sixth", "succeeded")
		if most := agent.mostJobs(); most != 4 {
			t.Errorf("the agent held at most %d jobs at the same time, want 4", most)
		}
	})
}

func TestRunSingle(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent("single_run: true")
		w.queue("one", oneStep("true"))
		w.queue("two", oneStep("true"))
		agent.exit(cli.ExitOK)
		agent.waitFor(`agent stopped reason="single run finished"`)
		w.wantStatus("one", "succeeded")
		w.wantStatus("two", "not-started")
	})
}

func TestRunSingleIdleTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.follow(nil, "token: "+w.pool, "single_run: true", "idle_timeout: 1h")
	w.save("token: "+w.pool, "single_run: true", "idle_timeout: 1s") // takes effect at once
	agent.exit(cli.ExitOK)
	agent.waitFor("single run ends: the pool got no job within idle_timeout")
	agent.waitFor(`agent stopped reason="single run finished"`)
}

// TestRunFirstTermWaitsForJobs also checks that a line arrives while its step runs: the step ends only
// after the test has read its first line.
func TestRunFirstTermWaitsForJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		release := w.holdAnywhere("one", w.poolID)
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping: no new jobs")
		w.queue("two", oneStep("true"))
		release()
		agent.exit(cli.ExitOK)
		w.wantStatus("two", "not-started")
	})
}

func TestRunSecondTermStopsJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		w.queue("one", oneStep("trap 'echo unlocking; exit 1' TERM\necho running\nsleep 99 & wait"))
		w.waitStarted("one")
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping: no new jobs")
		agent.signal(syscall.SIGTERM)
		agent.exit(cli.ExitOK)
		w.await("one", "failed")
		w.wantLog("one", "unlocking", "stopped by a signal")
	})
}

func TestRunAdoptsAfterKill(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		release := w.holdAnywhere("one", w.poolID)
		w.kill(agent)
		again := w.agent()
		again.waitFor("job resumed")
		release()
		again.waitFor("job succeeded")
		w.waitRemoved("one")
	})
}

func TestRunTwoAgentsOnOneHost(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		release := w.holdAnywhere("one", w.poolID)
		second := w.agentWith(w.ownState("second"))
		w.runShort("two", w.poolID) // the second agent runs it, because its slot is free
		second.wantPrinted(0, "job resumed")
		second.signal(syscall.SIGTERM)
		second.signal(syscall.SIGTERM)
		second.exit(cli.ExitOK)
		release()
	})
}

// TestRunLogOf50MB uses only the target docker in make test, because with each target the
// runner itself sends the lines to the service.
func TestRunLogOf50MB(t *testing.T) {
	t.Parallel()
	targets := []string{"docker"}
	if whole() {
		targets = append(targets, "kubernetes", "process")
	}
	at(t, targets, func(t *testing.T, w *world) {
		w.agent()
		const lines = 500_000
		w.queue("one", oneStep(fmt.Sprintf(
			`awk 'BEGIN { for (i = 0; i < %d; i++) printf "line %%07d %%s\n", i, "`+
				`of a log that is long for its own sake, with a hundred bytes per line, newline and all......" }'`,
			lines)))
		w.await("one", "succeeded")
		log := w.log("one")
		next := 0
		for line := range strings.Lines(log) {
			if strings.HasPrefix(line, fmt.Sprintf("line %07d ", next)) {
				next++
			}
		}
		if next != lines {
			t.Errorf("%d of %d lines have arrived in order; the log has %d bytes", next, lines, len(log))
		}
		if len(log) < 50_000_000 {
			t.Errorf("the log has %d bytes, want 50 MB", len(log))
		}
	}, "--max-log-bytes", "100Mi")
}

func TestRunLongLineAndBinaryLog(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one", oneStep(`awk 'BEGIN { for (i = 0; i < 50000; i++) printf "%s", "`+
			`0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-+0123456789abcdefghijklmnopqrstuvwxyz"; `+
			`print "" }'
printf 'no \377\376 text\n'
printf 'progress 1\rprogress 2\n'
echo last`))
		w.await("one", "succeeded")
		log := w.log("one")
		letters := 0
		for line := range strings.Lines(log) {
			if !strings.HasPrefix(line, "$ ") {
				letters += strings.Count(line, "k")
			}
		}
		if letters < 2*50_000 {
			t.Errorf("%d of the long line's 100,000 letters k have arrived", letters)
		}
		for _, want := range []string{"no \ufffd", " text\n", "progress 1\rprogress 2\n", "\nlast\n"} {
			if !strings.Contains(log, want) {
				t.Errorf("the log lacks %q; it ends with %q", want, log[max(0, len(log)-200):])
			}
		}
	})
}

func TestRunHidesSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	const setting, password = "hunter2-setting-secret", "hunter2-registry-password"
	const forwarded = "hunter2-forwarded-secret"
	const plain = "hunter2-under-a-name-that-tells-nothing"
	port := agentPort(freePort(t))
	const collecting = "hunter2-token-of-the-collector"
	traces, variable := traced(t)
	agent := w.agentWith([]string{
		"CLOUD_KEY=" + forwarded, "GOTRACEBACK=all", variable, "OTEL_BSP_SCHEDULE_DELAY=100",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=" + collecting,
	}, "env_forward_allowlist: [CLOUD_KEY]", "job_log: both", port.setting())
	w.queue("one", order{
		Env: map[string]any{
			"DB_PASSWORD": map[string]string{"secret": setting}, "FLAVOUR": map[string]string{"secret": plain},
		},
		Login: map[string]any{"username": "user", "password": map[string]string{"secret": password}},
		Steps: []step{{Name: "a", Run: "echo running\necho $DB_PASSWORD $FLAVOUR $CLOUD_KEY $PULUMI_ACCESS_TOKEN\n" +
			"printf hunter2-set; sleep 0.2; echo ting-secret\n" +
			"until [ -e /tmp/go ]; do sleep 0.05; done"}},
	})
	w.waitStarted("one")
	secrets := map[string]string{
		"setting": setting, "setting of a plain name": plain, "registry password": password,
		"forwarded variable": forwarded, "pool token": w.pool, "token of the collector": collecting,
	}
	look := func(where, text string) {
		t.Helper()
		for what, value := range secrets {
			if strings.Contains(text, value) {
				t.Errorf("the secret %q appears in %s", what, where)
			}
		}
	}
	look("docker inspect", w.engine("inspect", w.container("one")))
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(processes) < 3 {
		t.Fatalf("only %d processes can be seen: %v", len(processes), err)
	}
	for _, file := range processes {
		if text, err := os.ReadFile(file); err == nil && !strings.Contains(string(text), "cmwa.test") {
			look(file, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	pages := func(when string) {
		t.Helper()
		for _, path := range []string{"/", "/status", "/metrics", "/healthz", "/readyz"} {
			for _, accept := range []string{"text/html", "*/*"} {
				look(when+" "+path, getAs(t, port.url(path), accept))
			}
		}
		for _, command := range []string{"status", "jobs list"} {
			args := append(strings.Fields(command), "--json", "--config", filepath.Join(w.directory, "agent.yaml"))
			got := cmwa(w.environ(), args...)
			if got.code == cli.ExitUsage {
				t.Errorf("cmwa %s: %s", command, got.stderr)
			}
			look(when+" cmwa "+command, got.stdout)
		}
	}
	pages("while the job runs")
	var local string
	w.eventually("the container's log has the output of the step", func() bool {
		local = cmwa(append(w.environ(), "PATH="+os.Getenv("PATH")), "jobs", "logs", "--config",
			filepath.Join(w.directory, "agent.yaml"), w.id("one")).stdout
		return strings.Contains(local, "\nstep 1 | [secret] [secret] [secret] [secret]\nstep 1 | [secret]\n")
	})
	look("the container's log", local)
	w.engine("exec", w.container("one"), "touch", "/tmp/go")
	w.await("one", "succeeded")
	pages("after the job")
	look("the job's log", w.log("one"))
	look("the output of the programs", w.logs())
	w.wantLog("one", "[secret]") // in place of the secrets
	w.must(filepath.WalkDir(w.data, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Base(path) == "access-token" {
			return err
		}
		text, err := os.ReadFile(path)
		look("the service's "+filepath.Base(path), string(text))
		return err
	}))

	w.waitRemoved("one")
	w.eventually("the trace is exported", func() bool { return strings.Contains(traces.received(), "first_line") })
	look("the trace", traces.received())

	// A crash prints the stacks of all goroutines.
	agent.signal(syscall.SIGABRT)
	agent.exit(2)
	look("the agent's log and its stacks", agent.output())
	if !strings.Contains(agent.output(), "SIGABRT: abort") {
		t.Errorf("the agent has printed no stacks:\n%s", agent.output())
	}
}

// getAs returns the body of a response to a client that accepts a type.
func getAs(t *testing.T, url, accept string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	noError(t, err)
	request.Header.Set("Accept", accept)
	response, err := http.DefaultClient.Do(request)
	noError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	noError(t, err)
	return string(body)
}

func TestRunReportsKilledContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	w.agent()
	w.queue("one", order{Steps: []step{{Name: "a", Run: "echo running; sleep 600"}, {Name: "b", Run: "true"}}})
	w.waitStarted("one")
	w.engine("kill", "--signal", "KILL", w.container("one"))
	w.await("one", "failed")
	w.wantSteps("one", "succeeded", "failed", "not-started")
	w.wantLog("one", "Error: the instance of this job ended before the runner reported an outcome")
}

func TestRunBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	elsewhere := t.TempDir()
	run := func(config string) []string { return []string{"run", "--config", config} }
	file := func(text string) []string { return run(fileOf(t, "config.yaml", text)) }
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"no configuration": {[]string{"run"}, []string{"pulumi-workflow-agent.yaml", "PULUMI_AGENT_TOKEN"}},
		"no such file":     {run(filepath.Join(elsewhere, "none.yaml")), []string{"none.yaml"}},
		"a directory":      {run(elsewhere), []string{elsewhere}},
		"a wrong value": {
			file("token: pul-x\ndeploy_target: dcker\n"), []string{":2:", "deploy_target", "docker"},
		},
		"no token": {file("deploy_target: process\n"), []string{"token", "PULUMI_AGENT_TOKEN"}},
		"a target of a later release": {
			file("token: pul-x\ndeploy_target: ecs\n"), []string{"ecs", "docker, kubernetes and process"},
		},
		"an unknown command":   {[]string{"rnu"}, []string{"rnu", "run"}},
		"an unknown flag":      {[]string{"run", "--confg", "x"}, []string{"confg"}},
		"an argument too many": {[]string{"run", "now"}, []string{"takes no argument"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.start("bad", []string{"PULUMI_AGENT_HTTP_SERVER_PORT=0"}, "cmwa", c.args...)
			p.exit(cli.ExitUsage)
			for _, want := range c.want {
				if !strings.Contains(p.output(), want) {
					t.Errorf("the output lacks %q:\n%s", want, p.output())
				}
			}
		})
	}
}
