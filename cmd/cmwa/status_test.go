package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
)

// fixedStatus returns the document of statusTestdata.
func fixedStatus(t *testing.T) (d status.Document) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(statusTestdata, "document.json"))
	if err == nil {
		err = json.Unmarshal(content, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// statusTestdata is a directory with a status document, and with the text that cmwa status
// prints for it.
const statusTestdata = "../../reconcile/status/testdata"

// fixedAgent starts a server that answers with fixedStatus.
func fixedAgent(t *testing.T) *httptest.Server {
	t.Helper()
	d := fixedStatus(t)
	return agentOf(t, func() status.Document { return d })
}

func TestStatusText(t *testing.T) {
	server := fixedAgent(t)
	want, err := os.ReadFile(filepath.Join(statusTestdata, "document.txt"))
	if err != nil {
		t.Fatal(err)
	}
	result := tell(nil, "status", "--url", server.URL)
	if result.stdout != string(want) || result.stderr != "" || result.code != cli.ExitFailure {
		t.Errorf("%+v", result)
	}
}

// agentOf starts a server that responds to GET /status with the documents that answer
// returns.
func agentOf(t *testing.T, answer func() status.Document) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer())
	}))
	t.Cleanup(server.Close)
	return server
}

func TestStatusExitCode(t *testing.T) {
	fine := fixedStatus(t)
	fine.Converged, fine.Ready, fine.NotReady, fine.Config.Applied, fine.Config.Rejection = true, true, nil, 3, nil
	for name, test := range map[string]struct {
		change func(*status.Document)
		code   int
	}{
		"all is well": {func(*status.Document) {}, cli.ExitOK},
		"unhealthy":   {func(d *status.Document) { d.Healthy = false }, cli.ExitFailure},
		"not ready": {func(d *status.Document) {
			d.Ready, d.NotReady = false, []reconcile.Unready{{Pool: "prod", Reason: "no response"}}
		}, cli.ExitFailure},
		"not converged": {func(d *status.Document) { d.Converged = false }, cli.ExitFailure},
		"the file is refused": {func(d *status.Document) { d.Config.Rejection = &status.Rejection{} },
			cli.ExitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			d := fine
			test.change(&d)
			server := agentOf(t, func() status.Document { return d })
			for _, args := range [][]string{{"status", "--url", server.URL}, {"status", "--json", "--url",
				server.URL + "/status"}} {
				result := tell(nil, args...)
				if result.code != test.code || result.stderr != "" || result.stdout == "" {
					t.Errorf("%v: %+v", args, result)
				}
			}
		})
	}
}

func TestStatusJSON(t *testing.T) {
	server := fixedAgent(t)
	var d status.Document
	if err := json.Unmarshal([]byte(tell(nil, "status", "--url", server.URL, "--json").stdout), &d); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(fixedStatus(t))
	got, _ := json.Marshal(d)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestStatusAddress(t *testing.T) {
	server := fixedAgent(t)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		file    string
		environ []string
	}{
		"a good file":              {"token: pul-a\nhttp_server_port: " + port + "\n", nil},
		"no token on this machine": {"http_server_port: " + port + "\n", nil},
		"a refused file": {"token: pul-a\nhttp_server_port: " + port +
			" # taken\npoling_interval: x\nlog_level: loud\n", nil},
		"a file that is no YAML": {"token: [\nhttp_server_port: " + port + "\n", nil},
		"the variable":           {"token: pul-a\n", []string{"PULUMI_AGENT_HTTP_SERVER_PORT=" + port}},
		"the variable, refused file": {"token: pul-a\nlog_level: loud\nhttp_server_port: 1\n",
			[]string{"PULUMI_AGENT_HTTP_SERVER_PORT=" + port}},
	} {
		t.Run(name, func(t *testing.T) {
			result := tell(test.environ, "status", "--config", fileOf(t, "agent.yaml", test.file))
			if result.code != cli.ExitFailure || !strings.Contains(result.stdout, "pid 4711") || result.stderr != "" {
				t.Errorf("%+v", result)
			}
		})
	}
}

func TestStatusErrors(t *testing.T) {
	free := freePort(t)
	with := func(answer func(w http.ResponseWriter)) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		t.Cleanup(server.Close)
		return server.URL
	}
	config := fileOf(t, "agent.yaml", "token: pul-a\nhttp_server_port: "+strconv.Itoa(free)+"\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing listens": {[]string{"--config", config}, "connection refused"},
		"no server": {[]string{"--config", fileOf(t, "a.yaml", "token: pul-a\nhttp_server_port: 0\n")},
			"set http_server_port"},
		"no file": {[]string{"--config", config + "x"},
			"no such file or directory: make it readable, or name another; or name the agent with --url"},
		"no URL":            {[]string{"--url", "localhost:8080"}, "--url must be a URL"},
		"a URL with a user": {[]string{"--url", "http://me:secret@127.0.0.1"}, "--url must be a URL"},
		"both":              {[]string{"--url", "http://127.0.0.1", "--config", config}, "either --config or --url"},
		"an argument":       {[]string{"agent.yaml"}, "takes no argument"},
		"another program": {[]string{"--url",
			with(func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) })}, "code 418"},
	} {
		t.Run(name, func(t *testing.T) {
			result := tell(nil, append([]string{"status"}, test.args...)...)
			if result.code != cli.ExitUsage || result.stdout != "" || !strings.Contains(result.stderr, test.want) ||
				strings.Count(result.stderr, "\n") != 1 || strings.Contains(result.stderr, "secret") {
				t.Errorf("%+v", result)
			}
		})
	}
}

func TestStatusPortOfRejectedFile(t *testing.T) {
	const port = "PULUMI_AGENT_HTTP_SERVER_PORT="
	directory := t.TempDir()
	t.Chdir(directory)
	t.Setenv("HOME", directory)
	for name, test := range map[string]struct {
		file    string // if empty, there is no file
		environ []string
		port    int
		guessed string // if empty, the port is not a guess
	}{
		"a good file":                    {"token: pul-a\n", nil, 8080, ""},
		"a refused file with a port":     {"token: pul-a\nlog_level: loud\nhttp_server_port: 7001\n", nil, 7001, ""},
		"a file that is empty":           {" \n", nil, 8080, "agent.yaml is empty"},
		"an empty file and the variable": {"\n", []string{port + "7002"}, 7002, ""},
		"a file that is no YAML":         {"\x00\x01", nil, 8080, "agent.yaml cannot be used (see cmwa vet)"},
		"a refused file without a port":  {"token: pul-a\nlog_level: loud\n", nil, 8080, "agent.yaml cannot be used"},
		"a port that is too large": {"token: pul-a\nhttp_server_port: 99999\n", nil, 8080,
			"agent.yaml cannot be used"},
		"a port that is a text": {"token: pul-a\nhttp_server_port: secret\n", nil, 8080,
			"agent.yaml cannot be used"},
		"no file":                   {"", nil, 8080, "there is no pulumi-workflow-agent.yaml in " + directory},
		"no file, and the variable": {"", []string{port + "7003"}, 7003, ""},
		"a variable that is not a port number": {"token: pul-a\n", []string{port +
			"secret"}, 8080, "PULUMI_AGENT_HTTP_SERVER_PORT is not a port number"},
	} {
		t.Run(name, func(t *testing.T) {
			c := client{environ: readEnvironment(test.environ)}
			if test.file != "" {
				c.config = fileOf(t, "agent.yaml", test.file)
			}
			at, guessed, err := c.address()
			if want := fmt.Sprintf("http://127.0.0.1:%d/status", test.port); err != nil || at != want {
				t.Errorf("%s, %v, want %s", at, err, want)
			}
			if !strings.Contains(guessed, test.guessed) || (guessed == "") != (test.guessed == "") ||
				strings.Contains(guessed, "secret") {
				t.Errorf("guessed because of %q, want %q", guessed, test.guessed)
			}
		})
	}
}

func TestStatusPortFromDamagedFile(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that the request fails even if a program listens on the default port
	c := client{config: fileOf(t, "agent.yaml", "token: [\n"), environ: environment{}}
	_, err := c.fetch(ctx)
	want := "no response from an agent at http://127.0.0.1:8080/status: connection failed: " +
		"that port is a guess, because " + c.config + " cannot be used (see cmwa vet): name the agent with --url"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestStatusInvalidFile(t *testing.T) {
	server := fixedAgent(t)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := client{config: fileOf(t, "agent.yaml", "token: pul-a\nhttp_server_port: "+port+"\n"), environ: environment{}}
	for _, content := range []string{"", "\n", "garbage\n", "http_server_port: 99999\n"} {
		if _, err := c.fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.config, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
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
		if err := show(fixedStatus(t), lost); err != nil {
			t.Fatal(err)
		}
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
	looks, fixed := 0, fixedStatus(t)
	server := agentOf(t, func() status.Document {
		d := fixed
		d.Config.Desired = uint64(looks)
		if looks++; looks == 3 {
			d.Healthy, d.Ready, d.Converged, d.Config.Rejection, d.Config.Applied = true, true, true, nil, 2
		}
		return d
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
	code := execute(ctx, context.Background(), []string{"status", "--url", server.URL, "--watch"},
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

// onceWith is like once, and sets further environment variables.
func (w *world) onceWith(env []string, args ...string) output {
	w.t.Helper()
	var out, wrong bytes.Buffer
	cmd := exec.Command(filepath.Join(w.bin, "cmwa"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.directory, &out, &wrong
	cmd.Env = append(append(os.Environ(), w.environ()...), env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return output{cmd.ProcessState.ExitCode(), out.String(), wrong.String()}
}

func TestStatusWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port, next := freePort(t), freePort(t)
	w.agent(fmt.Sprintf("http_server_port: %d", port))
	config := filepath.Join(w.directory, "agent.yaml")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, content string) string {
		path := filepath.Join(w.directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	save := func(content string) {
		if err := os.Rename(file("agent.yaml.new", content), config); err != nil {
			t.Fatal(err)
		}
	}
	var d status.Document
	reports := func(what string, code int, so func() bool) {
		t.Helper()
		w.eventually(what, func() bool {
			result := w.once("status", "--json", "--config", config)
			d = status.Document{}
			return result.code == code && json.Unmarshal([]byte(result.stdout), &d) == nil && so()
		})
	}
	metric := func(line string) bool {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(text), "\n"+line+"\n")
	}

	reports("the first generation is in force", cli.ExitOK, func() bool {
		return d.Config.Applied == 1 &&
			d.Config.Path == config && len(d.Pools) == 1
	})
	watching := w.start("status", nil, "cmwa", "status", "--watch", "--config", config)
	watching.waitFor("generation 1, in force")
	witness := filepath.Join(w.directory, "go-on")
	w.queue("long", order{Steps: []step{{Name: "a", Run: "until [ -e " + witness + " ]; do sleep 0.05; done"}}})
	reports("the job is shown", cli.ExitOK, func() bool {
		return len(d.Pools[0].Jobs) == 1 &&
			d.Pools[0].Jobs[0].Phase == "running"
	})

	second := strings.Replace(string(good), "polling_interval: 200ms", "polling_interval: 300ms", 1)
	if result := w.once("plan", "--live", "--config", config, file("candidate.yaml",
		second)); result.code != exitChanges || !strings.Contains(result.stdout, "200ms -> 300ms") {
		t.Errorf("the plan before the edit: %+v", result)
	}
	save(second)
	reports("the second generation is in force", cli.ExitOK, func() bool {
		return d.Config.Applied == 2 && d.Reload != nil && slices.Contains(d.Reload.Changes,
			status.Change{Pool: "default", Key: "polling_interval", From: "200ms", To: "300ms", Effect: "live"})
	})

	save(second + "poling_interval: 1s\nlog_level: loud\n")
	reports("the bad edit is refused", cli.ExitFailure, func() bool {
		r := d.Config.Rejection
		return d.Config.Applied == 2 && d.Healthy && r != nil && len(r.Problems) > 0 &&
			r.Problems[0].File == config && r.Problems[0].Line > 0
	})
	w.eventually("the metrics count the rejection", func() bool {
		return metric("cmwa_config_rejected_total 1") &&
			!metric("cmwa_config_problems 0")
	})
	if result := w.once("plan", "--live", "--config", config, file("candidate.yaml",
		second)); result.code != exitInvalid || !strings.Contains(result.stderr,
		"the agent refused the last edit of its file") {
		t.Errorf("the plan after a rejected edit: %+v", result)
	}
	if result := w.once("status", "--config", config); result.code != cli.ExitFailure ||
		!strings.Contains(result.stdout, "REJECTED") || !strings.Contains(result.stdout, "log_level") {
		t.Errorf("%+v", result)
	}
	watching.waitFor("REJECTED")
	save(second)
	reports("the edit is undone", cli.ExitOK, func() bool {
		return d.Config.Applied == 2 &&
			d.Config.Rejection == nil && d.Config.Rejected == 1
	})
	watching.waitFor("file no longer rejected")

	save(strings.Replace(second, fmt.Sprintf("http_server_port: %d", port), fmt.Sprintf("http_server_port: %d",
		next), 1))
	reports("the agent answers at its new port", cli.ExitOK, func() bool {
		return d.Config.Applied == 3 &&
			len(d.Pools[0].Jobs) == 1
	})
	watching.waitFor("generation 3, in force")
	if err := os.WriteFile(witness, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.await("long", "succeeded")
	watching.signal(os.Interrupt)
	watching.exit(cli.ExitOK)
	if output := watching.output(); strings.Contains(output, "\x1b") || strings.Contains(output, w.pool) {
		t.Errorf("the output contains control characters or a secret of a file:\n%s", output)
	}
}
