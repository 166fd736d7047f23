package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
)

// statusTestdata is a directory with a status document, and with the text that cmwa status
// prints for it.
const statusTestdata = "../../reconcile/status/testdata"

// fixedStatus returns the document of statusTestdata.
func fixedStatus(t *testing.T) (d status.Document) {
	t.Helper()
	decode(t, []byte(readText(t, filepath.Join(statusTestdata, "document.json"))), &d)
	return d
}

// agentOf starts a server that responds to GET /status with fixedStatus, and returns its URL. The
// function change, which may be nil, changes each response.
func agentOf(t *testing.T, change func(*status.Document)) string {
	t.Helper()
	fixed := fixedStatus(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		d := fixed
		if change != nil {
			change(&d)
		}
		_ = json.NewEncoder(w).Encode(d)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// runningAgent serves the control socket of an agent with a configuration file until the test ends.
// Its status is fixedStatus, and its configuration in force is that of the file. It returns the
// variable with the agent's state directory.
func runningAgent(t *testing.T, config string, environ ...string) (variable string) {
	t.Helper()
	directory := t.TempDir()
	owner, err := agentid.Take(directory, config)
	noError(t, err)
	t.Cleanup(owner.Close)
	variables := readEnvironment(environ)
	source, err := findForRun(placesOf(config, variables))
	noError(t, err)
	inForce, _ := schema.Load(source) // nil if the file is invalid
	serve, _ := control.Open(control.Agent{
		Directory: directory, Loop: idleLoop{}, Status: func() any { return fixedStatus(t) },
		Plan: planner(variables, func() *schema.Config { return inForce }),
	}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = serve(ctx) })
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return "PULUMI_AGENT_STATE_DIRECTORY=" + directory
}

// idleLoop is the loop of an agent with two pools.
type idleLoop struct{}

func (idleLoop) Status() (s reconcile.Status) {
	for _, name := range []string{"green", "blue"} {
		s.Pools = append(s.Pools, runtime.PoolState{Spec: runtime.PoolSpec{Name: name}})
	}
	return s
}
func (idleLoop) Pause(string) bool  { return false }
func (idleLoop) Resume(string) bool { return false }

func (idleLoop) StopJob(string) bool { return false }

func TestStatusText(t *testing.T) {
	good, refused := "token: pul-a\n", "token: pul-a\nhttp_server_port: 0 # none\npoling_interval: x\nlog_level: loud\n"
	want := output{cli.ExitFailure, readText(t, filepath.Join(statusTestdata, "document.txt")), ""}
	for name, content := range map[string]string{"a good file": good, "a refused file": refused, "an empty file": ""} {
		t.Run(name, func(t *testing.T) {
			config := fileOf(t, "agent.yaml", content)
			if got := cmwa([]string{runningAgent(t, config)}, "status", "--config", config); got != want {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := cmwa(nil, "status", "--url", agentOf(t, nil)); got != want {
		t.Errorf("by its URL: %+v", got)
	}
}

// TestStatusOtherAgent has two agents on one machine. The file of one of them names the port of the
// other.
func TestStatusOtherAgent(t *testing.T) {
	url := agentOf(t, nil) // the agent with another file
	config := fileOf(t, "agent.yaml", "token: pul-a\nhttp_server_port: "+url[strings.LastIndex(url, ":")+1:]+"\n")
	other := runningAgent(t, fileOf(t, "other.yaml", "token: pul-b\n"))
	alone := "PULUMI_AGENT_STATE_DIRECTORY=" + t.TempDir()
	for _, args := range [][]string{{"status", "--config", config}, {"plan", "--live", "--config", config, config}} {
		for variable, want := range map[string]string{
			alone: "no agent runs with " + config, other: "the last process that used its state directory",
		} {
			if got := cmwa([]string{variable}, args...); got.code == cli.ExitOK || got.stdout != "" ||
				!strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%v with %s: %+v", args, variable, got)
			}
		}
	}
}

func TestStatusExitCode(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*status.Document)
		code   int
	}{
		"all is well": {func(*status.Document) {}, cli.ExitOK},
		"unhealthy":   {func(d *status.Document) { d.Healthy = false }, cli.ExitFailure},
		"not ready": {func(d *status.Document) {
			d.Ready, d.NotReady = false, []reconcile.Unready{{Pool: "prod", Reason: "no response"}}
		}, cli.ExitFailure},
		"not converged":       {func(d *status.Document) { d.Converged = false }, cli.ExitFailure},
		"the file is refused": {func(d *status.Document) { d.Config.Rejection = &status.Rejection{} }, cli.ExitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			url := agentOf(t, func(d *status.Document) {
				d.Converged, d.Ready, d.NotReady, d.Config.Applied, d.Config.Rejection = true, true, nil, 3, nil
				test.change(d)
			})
			for _, args := range [][]string{{"--url", url}, {"--json", "--url", url + "/status"}} {
				got := cmwa(nil, append([]string{"status"}, args...)...)
				if got.code != test.code || got.stderr != "" || got.stdout == "" {
					t.Errorf("%v: %+v", args, got)
				}
			}
		})
	}
}

func TestStatusJSON(t *testing.T) {
	var d status.Document
	decode(t, []byte(cmwa(nil, "status", "--url", agentOf(t, nil), "--json").stdout), &d)
	want, _ := json.Marshal(fixedStatus(t))
	got, _ := json.Marshal(d)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestStatusErrors(t *testing.T) {
	config := fileOf(t, "agent.yaml", "token: pul-a\n")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no agent":        {[]string{"--config", config}, "no agent runs with " + config},
		"nothing listens": {[]string{"--url", fmt.Sprintf("http://127.0.0.1:%d", freePort(t))}, "connection refused"},
		"another program": {[]string{"--url", other.URL}, "code 404"},
		"no file": {[]string{"--config", config + "x"},
			"no such file or directory: make it readable, or name another; or name the agent with --url"},
		"no URL":            {[]string{"--url", "localhost:8080"}, "--url must be a URL"},
		"a URL with a user": {[]string{"--url", "http://me:secret@127.0.0.1"}, "--url must be a URL"},
		"both":              {[]string{"--url", "http://127.0.0.1", "--config", config}, "either --config or --url"},
		"an argument":       {[]string{"agent.yaml"}, "takes no argument"},
	} {
		t.Run(name, func(t *testing.T) {
			result := cmwa([]string{"PULUMI_AGENT_STATE_DIRECTORY=" + t.TempDir()},
				append([]string{"status"}, test.args...)...)
			if result.code != cli.ExitUsage || result.stdout != "" || !strings.Contains(result.stderr, test.want) ||
				strings.Count(result.stderr, "\n") != 1 || strings.Contains(result.stderr, "secret") {
				t.Errorf("%+v", result)
			}
		})
	}
}

func TestStatusInvalidFile(t *testing.T) {
	c := client{config: fileOf(t, "agent.yaml", "token: pul-a\n")}
	c.environ = readEnvironment([]string{runningAgent(t, c.config)})
	_, err := c.fetch(t.Context())
	noError(t, err)
	noError(t, os.Remove(c.config)) // while cmwa status --watch runs
	if d, err := c.fetch(t.Context()); err != nil || d.Agent.PID != 4711 {
		t.Errorf("%v, %v", d.Agent, err)
	}
}

func TestStatusPrinterLostAgent(t *testing.T) {
	var out, wrong bytes.Buffer
	show := stdio{stdout: &out, stderr: &wrong}.statusPrinter(false, true)
	look := func(lost error) string {
		out.Reset()
		wrong.Reset()
		noError(t, show(fixedStatus(t), lost))
		return out.String() + wrong.String()
	}
	if first := look(nil); !strings.Contains(first, "POOL") || !strings.Contains(first, "2026-11-21T10:18:00Z") {
		t.Error(first)
	}
	lost := errors.New("no agent")
	if result := look(lost); result != "cmwa: no agent\n" {
		t.Error(result)
	}
	if result := look(lost); result != "" {
		t.Errorf("the same error is printed twice: %s", result)
	}
	if result := look(nil); result != "" {
		t.Errorf("after the error the agent has the same status as before, but the output is %s", result)
	}
	if result := look(lost); result != "cmwa: no agent\n" {
		t.Errorf("when the agent does not respond again, the output is %s", result)
	}
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

func TestStatusWatchUntilStopped(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(context.Background(), storyLimit)
	defer stop()
	looks := 0
	url := agentOf(t, func(d *status.Document) {
		d.Config.Desired = uint64(looks)
		if looks++; looks == 3 {
			d.Healthy, d.Ready, d.Converged, d.Config.Rejection, d.Config.Applied = true, true, true, nil, 2
		}
	})
	var out, wrong bytes.Buffer
	wanted := []string{"generation 0", "generation 1", "generation 2, in force", "file no longer rejected"}
	untilWanted := writerFunc(func(text []byte) (int, error) {
		out.Write(text)
		if !slices.ContainsFunc(wanted, func(want string) bool { return !strings.Contains(out.String(), want) }) {
			stop()
		}
		return len(text), nil
	})
	code := execute(ctx, context.Background(), []string{"status", "--url", url, "--watch"},
		stdio{stdout: untilWanted, stderr: &wrong})
	if ctx.Err() != context.Canceled || code != cli.ExitOK || wrong.Len() > 0 {
		t.Errorf("exit code %d, %s; the output lacks one of %q:\n%s", code, wrong.String(), wanted, out.String())
	}
	if strings.Count(out.String(), "POOL") != 1 {
		t.Errorf("unchanged parts are printed again:\n%s", out.String())
	}
}

// once runs cmwa with these arguments, waits until it has ended, and returns its output.
func (w *world) once(args ...string) output {
	w.t.Helper()
	return w.onceWith(nil, args...)
}

// onceWith is like once, and sets further environment variables. The command is short, so it has no race detector.
func (w *world) onceWith(env []string, args ...string) output {
	w.t.Helper()
	cmd := exec.Command(staticCmwa(w.t), args...)
	cmd.Dir = w.directory
	cmd.Env = append(append(os.Environ(), w.environ()...), env...)
	return outputOf(w.t, cmd)
}

func TestStatusWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port, next := agentPort(freePort(t)), agentPort(freePort(t))
	agent := w.agent(port.setting())
	config := filepath.Join(w.directory, "agent.yaml")
	good := readText(t, config)
	var d status.Document
	reports := func(what string, code int, so func() bool) {
		t.Helper()
		w.eventually(what, func() bool {
			result := w.once("status", "--json", "--config", config)
			d = status.Document{}
			return result.code == code && json.Unmarshal([]byte(result.stdout), &d) == nil && so()
		})
	}

	reports("the first generation is in force", cli.ExitOK,
		func() bool { return d.Config.Applied == 1 && d.Config.Path == config && len(d.Pools) == 1 })
	watching := w.start("status", nil, "cmwa", "status", "--watch", "--config", config)
	watching.waitFor("generation 1, in force")
	witness := filepath.Join(w.directory, "go-on")
	w.queue("long", oneStep("until [ -e "+witness+" ]; do sleep 0.05; done"))
	reports("the job is shown", cli.ExitOK,
		func() bool { return len(d.Pools[0].Jobs) == 1 && d.Pools[0].Jobs[0].Phase == "running" })
	if job := d.Pools[0].Jobs[0]; job.Deployment != w.id("long") || job.Stack != "long" || job.Version == "" {
		t.Errorf("the status names the job %+v", job)
	}

	second := strings.Replace(good, "polling_interval: 200ms", "polling_interval: 300ms", 1)
	plan := []string{"plan", "--live", "--config", config, fileOf(t, "candidate.yaml", second)}
	if result := w.once(plan...); result.code != exitChanges || !strings.Contains(result.stdout, "200ms -> 300ms") {
		t.Errorf("the plan before the edit: %+v", result)
	}
	w.replace(config, second)
	reports("the second generation is in force", cli.ExitOK, func() bool {
		return d.Config.Applied == 2 && d.Reload != nil && slices.Contains(d.Reload.Changes,
			status.Change{Pool: "default", Key: "polling_interval", From: "200ms", To: "300ms", Effect: "live"})
	})

	w.replace(config, second+"poling_interval: 1s\nlog_level: loud\n")
	reports("the bad edit is refused", cli.ExitFailure, func() bool {
		r := d.Config.Rejection
		return d.Config.Applied == 2 && d.Healthy && r != nil && len(r.Problems) > 0 &&
			r.Problems[0].File == config && r.Problems[0].Line > 0
	})
	w.eventually("the metrics count the rejection", func() bool {
		page := string(bodyOf(port.url("/metrics")))
		return strings.Contains(page, "\ncmwa_config_rejected_total 1\n") &&
			!strings.Contains(page, "\ncmwa_config_problems 0\n")
	})
	repair := []string{"plan", "--live", "--config", config, fileOf(t, "repair.yaml", good)}
	if result := w.once(repair...); result.code != exitChanges || !strings.Contains(result.stdout, "300ms -> 200ms") {
		t.Errorf("the plan of a repair after a rejected edit: %+v", result)
	}
	if result := w.once("status", "--config", config); result.code != cli.ExitFailure ||
		!strings.Contains(result.stdout, "REJECTED") || !strings.Contains(result.stdout, "log_level") {
		t.Errorf("%+v", result)
	}
	watching.waitFor("REJECTED")
	w.replace(config, second)
	reports("the edit is undone", cli.ExitOK,
		func() bool { return d.Config.Applied == 2 && d.Config.Rejection == nil && d.Config.Rejected == 1 })
	watching.waitFor("file no longer rejected")

	w.replace(config, strings.Replace(second, port.setting(), next.setting(), 1))
	reports("the agent answers at its new port", cli.ExitOK,
		func() bool { return d.Config.Applied == 3 && len(d.Pools[0].Jobs) == 1 })
	watching.waitFor("generation 3, in force")
	noError(t, os.WriteFile(witness, nil, 0o600))
	w.await("long", "succeeded")
	agent.waitForMatch(regexp.MustCompile(`job succeeded.* deployment=` + w.id("long") + `.* stack=long .*version=`))
	watching.signal(os.Interrupt)
	watching.exit(cli.ExitOK)
	if output := watching.output(); strings.Contains(output, "\x1b") || strings.Contains(output, w.pool) {
		t.Errorf("the output contains control characters or a secret of a file:\n%s", output)
	}
}
