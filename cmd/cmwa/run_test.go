package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// The tests of whole jobs are written in Go. Scripts in testdata/script could not wait for
// conditions at the service, or inspect engines and processes.

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

func TestRunSucceedingDeployment(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one", order{
			Steps: []step{
				{
					Name: "write",
					Run: "echo hello $GREETED\necho to stderr >&2\n" +
						"echo later=1 >> \"$PULUMI_ENV_FILE\"\necho kept > kept",
				},
				{Name: "read", Run: "echo later is $later; cat kept"},
			},
			Env: map[string]any{"GREETED": "world"},
		})
		w.await("one", "succeeded")
		w.wantSteps("one", "succeeded", "succeeded", "succeeded")
		log := w.log("one")
		for _, line := range []string{
			"hello world\nto stderr\n", "$ echo later is $later; cat kept\n", "later is 1\nkept\n",
		} {
			if !strings.Contains(log, line) {
				t.Errorf("the log lacks %q:\n%s", line, log)
			}
		}
		if w.target != "process" {
			w.eventually("the container is removed", func() bool { return len(w.containers("one")) == 0 })
		}
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
		w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}}) // the pool still runs jobs
		w.await("two", "succeeded")
	})
}

func TestRunMissingImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	w.agent()
	began := time.Now()
	w.queue("one", order{Image: "cmwa-test/there-is-none:1", Steps: []step{{Name: "a", Run: "true"}}})
	w.await("one", "failed")
	w.wantSteps("one", "failed", "not-started")
	if log := w.log("one"); !strings.Contains(log, "cmwa-test/there-is-none:1") ||
		!strings.Contains(log, "pull_image") {
		t.Errorf("the log must name the image and the key pull_image:\n%s", log)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the failure was reported after %s, want at most 30 s", took)
	}
}

func TestRunStepTimeout(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one",
			order{
				Steps: []step{
					{
						Name: "a", Run: "trap 'echo asked to stop; exit 1' TERM\necho running\nsleep 600 & wait",
						Timeout: "3s",
					},
					{Name: "b", Run: "true"},
				},
			})
		w.await("one", "failed")
		w.wantSteps("one", "succeeded", "failed", "not-started")
		log := w.log("one")
		if !strings.Contains(log, "asked to stop") ||
			!strings.Contains(log, "the step took longer than its time limit of 3s and was stopped") {
			t.Errorf("the log must show the TERM and name the limit:\n%s", log)
		}
	})
}

func TestRunCancelledJob(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		witness := filepath.Join(t.TempDir(), "ended")
		w.queue("one",
			order{
				Steps: []step{
					{
						Name: "a",
						Run:  "trap 'echo cancelled > " + witness + "; exit 1' TERM\necho running\nsleep 600 & wait",
					},
					{Name: "b", Run: "true"},
				},
			})
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		w.call(http.MethodPost, w.path("one")+"/cancel", nil, nil)
		if status, _ := w.status("one"); status != "failed" {
			t.Errorf("immediately after the cancellation, the deployment is %s, want failed", status)
		}
		if w.target != "process" {
			w.eventually("the container is removed", func() bool { return len(w.containers("one")) == 0 })
		} else {
			w.eventually("the step has received TERM", func() bool { _, err := os.Stat(witness); return err == nil })
		}
		w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("two", "succeeded")
		if _, steps := w.status("one"); steps[2] != "not-started" {
			t.Errorf("the steps of the cancelled job are %v", steps)
		}
	})
}

func TestRunConcurrentJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent("max_concurrent_workflows: 4")
		var names []string
		for i := range 6 {
			name := fmt.Sprint("job-", i)
			names = append(names, name)
			w.queue(name,
				order{
					Steps: []step{
						{Name: "a", Run: "echo running; n=0; while [ $n -lt 100 ]; do n=$((n+1)); sleep 0.02; done"},
					},
				})
		}
		peak := 0
		w.eventually("all have succeeded", func() bool {
			running, done := 0, 0
			for _, name := range names {
				switch status, _ := w.status(name); status {
				case "accepted", "running":
					running++
				case "succeeded":
					done++
				case "failed":
					t.Fatalf("%s has failed:\n%s", name, w.log(name))
				}
			}
			peak = max(peak, running)
			return done == len(names)
		})
		if peak < 4 {
			t.Errorf("at most %d jobs ran at the same time according to the service, want at least 4", peak)
		}
		// The test reads the statuses one after the other. It counts both jobs if one
		// ends and the next begins in the meantime, so peak may exceed 4. The agent's
		// log is in order, and the agent frees a slot only after it has logged the end
		// of the job.
		held, most := 0, 0
		for line := range strings.Lines(agent.output()) {
			switch {
			case strings.Contains(line, "job claimed"):
				held++
			case strings.Contains(line, "job succeeded"):
				held--
			}
			most = max(most, held)
		}
		if most != 4 {
			t.Errorf("the agent held at most %d jobs at the same time, want 4", most)
		}
	})
}

func TestRunSingle(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent("single_run: true")
		w.queue("one", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}})
		agent.exit(cli.ExitOK)
		agent.waitFor(`agent stopped reason="single run finished"`)
		if status, _ := w.status("one"); status != "succeeded" {
			t.Errorf("the first job is %s", status)
		}
		if status, _ := w.status("two"); status != "not-started" {
			t.Errorf("the second job is %s, want not-started", status)
		}
	})
}

func TestRunSingleIdleTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.follow(nil, "token: "+w.pool, "single_run: true", "idle_timeout: 1h")
	agent.waitFor("converged")
	w.save("token: "+w.pool, "single_run: true", "idle_timeout: 1s") // takes effect at once
	agent.exit(cli.ExitOK)
	agent.waitFor("single run ends: the pool got no job within idle_timeout")
	agent.waitFor(`agent stopped reason="single run finished"`)
}

func TestRunFirstTermWaitsForJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		settings := order{
			Steps: []step{
				{
					Name: "a",
					Run:  "echo running; n=0; while [ $n -lt 150 ]; do n=$((n+1)); sleep 0.02; done; echo finished",
				},
			},
		}
		w.queue("one", settings)
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping: no new jobs")
		w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}})
		agent.exit(cli.ExitOK)
		w.await("one", "succeeded")
		if status, _ := w.status("two"); status != "not-started" {
			t.Errorf("the second job is %s, want not-started", status)
		}
	})
}

func TestRunSecondTermStopsJobs(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		w.queue("one",
			order{Steps: []step{{Name: "a", Run: "trap 'echo unlocking; exit 1' TERM\necho running\nsleep 99 & wait"}}})
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		agent.signal(syscall.SIGTERM)
		agent.waitFor("stopping: no new jobs")
		agent.signal(syscall.SIGTERM)
		agent.exit(cli.ExitOK)
		w.await("one", "failed")
		if log := w.log("one"); !strings.Contains(log, "unlocking") || !strings.Contains(log, "stopped by a signal") {
			t.Errorf("the log must show the step's final output and the reason:\n%s", log)
		}
	})
}

func TestRunAdoptsAfterKill(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		agent := w.agent()
		w.queue("one",
			order{
				Steps: []step{
					{
						Name: "a",
						Run:  "echo running; n=0; while [ $n -lt 150 ]; do n=$((n+1)); sleep 0.02; done; echo finished",
					},
				},
			})
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		agent.signal(syscall.SIGKILL)
		agent.ends(storyLimit)
		again := w.agent()
		again.waitFor("job resumed")
		w.await("one", "succeeded")
		if count := strings.Count(w.log("one"), "\nrunning\n"); count != 1 {
			t.Errorf("the step has started %d times, want once", count)
		}
		again.waitFor("job succeeded")
		if w.target != "process" {
			w.eventually("the container is removed", func() bool { return len(w.containers("one")) == 0 })
		}
	})
}

func TestRunTwoAgentsOnOneHost(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		w.queue("one",
			order{
				Steps: []step{
					{
						Name: "a",
						Run:  "echo running; n=0; while [ $n -lt 250 ]; do n=$((n+1)); sleep 0.02; done; echo finished",
					},
				},
			})
		w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
		second := w.agentWith(w.ownState("second"))
		w.queue("two", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("two", "succeeded") // the second agent runs it, because its slot is free
		if strings.Contains(second.output(), "job resumed") {
			t.Errorf("the second agent has adopted the job of the first:\n%s", second.output())
		}
		second.signal(syscall.SIGTERM)
		second.signal(syscall.SIGTERM)
		second.exit(cli.ExitOK)
		w.await("one", "succeeded")
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
		w.queue("one", order{Steps: []step{{Name: "a", Run: fmt.Sprintf(
			`awk 'BEGIN { for (i = 0; i < %d; i++) printf "line %%07d %%s\n", i, "`+
				`of a log that is long for its own sake, with a hundred bytes per line, newline and all......" }'`,
			lines)}}})
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
		w.queue("one", order{Steps: []step{{Name: "a", Run: `awk 'BEGIN { for (i = 0; i < 50000; i++) printf "%s", "` +
			`0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-+0123456789abcdefghijklmnopqrstuvwxyz"; ` +
			`print "" }'
printf 'no \377\376 text\n'
printf 'progress 1\rprogress 2\n'
echo last`}}})
		w.await("one", "succeeded")
		log := w.log("one")
		letters := 0
		for line := range strings.Lines(log) {
			if strings.HasPrefix(line, "$ ") {
				continue
			}
			for _, r := range line {
				if r == 'k' {
					letters++
				}
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
	agent := w.agentWith([]string{"CLOUD_KEY=" + forwarded}, "env_forward_allowlist: [CLOUD_KEY]")
	w.queue("one", order{
		Env: map[string]any{
			"DB_PASSWORD": map[string]string{"secret": setting}, "FLAVOUR": map[string]string{"secret": plain},
		},
		Login: map[string]any{"username": "user", "password": map[string]string{"secret": password}},
		Steps: []step{
			{
				Name: "a",
				Run: "echo running\necho $DB_PASSWORD $FLAVOUR $CLOUD_KEY $PULUMI_ACCESS_TOKEN\n" +
					"printf hunter2-set; sleep 0.2; echo ting-secret\n" +
					"n=0; while [ $n -lt 100 ]; do n=$((n+1)); sleep 0.02; done",
			},
		},
	})
	w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
	secrets := map[string]string{
		"setting": setting, "setting of a plain name": plain, "registry password": password,
		"forwarded variable": forwarded, "pool token": w.pool,
	}
	look := func(where, text string) {
		t.Helper()
		for what, value := range secrets {
			if strings.Contains(text, value) {
				t.Errorf("the secret %q appears in %s", what, where)
			}
		}
	}
	look("docker inspect", w.engine(append([]string{"inspect"}, w.containers("one")...)...))
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(processes) < 3 {
		t.Fatalf("only %d processes can be seen: %v", len(processes), err)
	}
	for _, file := range processes {
		if text, err := os.ReadFile(file); err == nil && !strings.Contains(string(text), "cmwa.test") {
			look(file, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	w.await("one", "succeeded")
	log := w.log("one")
	look("the job's log", log)
	look("the agent's log", agent.output())
	look("the output of the programs", w.logs())
	if !strings.Contains(log, "[secret]") {
		t.Errorf("the log does not contain [secret] in place of the secrets:\n%s", log)
	}
	service := filepath.Join(w.directory, "service")
	err = filepath.WalkDir(service, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Base(path) == "access-token" {
			return err
		}
		text, err := os.ReadFile(path)
		look("the service's "+filepath.Base(path), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRunStreamsLog checks that a line arrives while its step runs: the step ends only after the
// test has read its first line.
func TestRunStreamsLog(t *testing.T) {
	t.Parallel()
	atEachTarget(t, func(t *testing.T, w *world) {
		w.agent()
		release := w.holdAnywhere("one", w.poolID)
		if log := w.log("one"); strings.Contains(log, "\nfinished\n") {
			t.Errorf("the step has ended before it was released:\n%s", log)
		}
		release()
	})
}

func TestRunReportsKilledContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	w.agent()
	w.queue("one", order{Steps: []step{{Name: "a", Run: "echo running; sleep 600"}, {Name: "b", Run: "true"}}})
	w.eventually("the step has started", func() bool { return strings.Contains(w.log("one"), "\nrunning\n") })
	ids := w.containers("one")
	if len(ids) != 1 {
		t.Fatalf("the job has the containers %v", ids)
	}
	w.engine("kill", "--signal", "KILL", ids[0])
	w.await("one", "failed")
	w.wantSteps("one", "succeeded", "failed", "not-started")
	if log := w.log("one"); !strings.Contains(log,
		"Error: the instance of this job ended before the runner reported an outcome") {
		t.Errorf("the log does not give the reason:\n%s", log)
	}
}

func TestRunHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port := freePort(t)
	w.agent(fmt.Sprint("http_server_port: ", port))
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	w.eventually("the agent is healthy and ready",
		func() bool { return probe(url+"/healthz") == 200 && probe(url+"/readyz") == 200 })
}

func TestRunBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	file := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	elsewhere := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"no configuration": {[]string{"run"}, []string{"pulumi-workflow-agent.yaml", "PULUMI_AGENT_TOKEN"}},
		"no such file": {
			[]string{"run", "--config", filepath.Join(elsewhere, "none.yaml")}, []string{"none.yaml"},
		},
		"a directory": {[]string{"run", "--config", elsewhere}, []string{elsewhere}},
		"a wrong value": {
			[]string{"run", "--config", file("token: pul-x\ndeploy_target: dcker\n", 0o600)},
			[]string{":2:", "deploy_target", "docker"},
		},
		"no token": {
			[]string{"run", "--config", file("deploy_target: process\n", 0o600)},
			[]string{"token", "PULUMI_AGENT_TOKEN"},
		},
		"a target of a later release": {
			[]string{"run", "--config", file("token: pul-x\ndeploy_target: ecs\n", 0o600)},
			[]string{"ecs", "docker, kubernetes and process"},
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

func TestRunWrongToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	good := w.pool
	w.pool = "pul-wrong"
	agent := w.agent()
	agent.waitFor("service rejected the token")
	agent.waitFor("PULUMI_AGENT_TOKEN")
	if agent.ends(time.Second) {
		t.Errorf("the agent has ended:\n%s", agent.output())
	}
	if strings.Contains(agent.output(), "pul-wrong") {
		t.Error("the message shows the token")
	}
	w.pool = good
}

func TestRunServiceDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	up := w.url
	w.url = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	agent := w.agent("circuit_breaker_timeout: 1s")
	agent.waitFor("cannot reach " + w.url)
	agent.waitFor("service_url")
	proxy := forward(t, strings.TrimPrefix(w.url, "http://"), strings.TrimPrefix(up, "http://"))
	defer proxy()
	agent.waitFor("polling resumed")
	w.url = up
}

func TestRunEngineDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	socket := filepath.Join(t.TempDir(), "engine.sock")
	agent := w.agentWith([]string{"DOCKER_HOST=unix://" + socket})
	agent.waitFor("cannot reach the Docker engine at unix://" + socket)
	lines := slices.DeleteFunc(strings.Split(agent.output(), "\n"),
		func(line string) bool { return !strings.Contains(line, "cannot reach the Docker engine") })
	if len(lines) == 0 || !strings.Contains(lines[0], "start it") {
		t.Errorf("the message does not name the hint: %v", lines)
	}
	if err := os.Symlink(engineSocket(), socket); err != nil {
		t.Fatal(err)
	}
	w.queue("one", order{Steps: []step{{Name: "a", Run: "true"}}})
	w.await("one", "succeeded")
}
