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
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// fixedStatus is what the agent of a test tells: always the same.
func fixedStatus() statusDocument {
	now := time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	return statusDocument{
		Version: statusVersion, Now: now, Healthy: true,
		NotReady: []statusReason{{"", "generation 3 of the configuration is not in force in full yet"}, {"prod", "no poll has succeeded since 2026-11-21T12:30:00Z"}},

		Agent: statusAgent{Version: "v1.2.3", PID: 4711, StartedAt: ago(3*time.Hour + 12*time.Minute)},
		Config: statusConfig{
			Path: "/etc/cmwa/pulumi-workflow-agent.yaml", Digest: strings.Repeat("0123456789abcdef", 4), Desired: 3, Applied: 2,
			AcceptedAt: ago(20 * time.Second), AppliedAt: ago(time.Hour), Watch: "events", Frozen: []string{"/run/secrets/token"},
			Rejection: &statusRejection{At: ago(5 * time.Second), Problems: []vetProblem{{
				Severity: "error", File: "/etc/cmwa/pulumi-workflow-agent.yaml", Line: 12, Column: 19, Path: "pools.prod.http_server_port",
				Message: "must be a whole number from 0 to 65535, and so on until the line is full", Hint: "remove it",
			}}},
			Warnings: []vetProblem{{Severity: "warning", File: "agent.yaml", Line: 3, Column: 1, Path: "poling_interval", Message: "unknown key", Hint: "did you mean \"polling_interval\"?"}},
		},
		Reload: &statusReload{
			At: ago(20 * time.Second), Now: []statusKey{{"", "log_level"}, {"prod", "polling_interval"}}, NextJob: []statusKey{{"prod", "pull_image"}},
			NeedsRestart: []statusKey{{"", "debug_pod"}}, Started: []string{"new"}, Drained: []string{"old"},
		},
		Pools: []statusPool{
			{Name: "prod", Key: "prod-1", Phase: "paused", Until: now.Add(30 * time.Second), Why: "the service asks for it", Problem: "the service refuses the token", Stuck: true, ProgressAt: ago(time.Hour), Target: "docker", Service: "https://api.pulumi.com", MaxJobs: 5,
				Jobs: []statusJob{{ID: "job", Subject: "0b7c9d3e-0000-4000-8000-000000000000", Phase: "running", Since: ago(90 * time.Second)}}},
			{Name: "a-pool-with-a-name-that-is-much-too-long-for-a-table", Key: "a-2", Phase: missing, Problem: "the Docker engine cannot be reached at unix:///var/run/docker.sock: permission denied: put the user into the group", Target: "kubernetes", Service: "https://pulumi.example.com/with/a/path/that/is/long", MaxJobs: 100},
		},
	}
}

// agentOf answers with what it is given, as an agent would.
func agentOf(t *testing.T, answer func() statusDocument) *httptest.Server {
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

func TestStatusDrawsAPictureOfEightyColumns(t *testing.T) {
	server := agentOf(t, fixedStatus)
	said := tell(nil, "status", "--url", server.URL)
	golden := filepath.Join("testdata", "status.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(said.stdout), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), said.stdout); diff != "" || said.stderr != "" {
		t.Errorf("%s; run with -update if this is right:\n%s", said.stderr, diff)
	}
	if said.code != cli.ExitFailure {
		t.Errorf("exit code %d for a refused file", said.code)
	}
}

func TestNoLineIsLongerThanEightyColumnsOrSteersTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`([a-z]{1,100} ?)*`))
		word := func(name string) string { return text.Draw(t, name) }
		d := fixedStatus()
		d.Agent.Version, d.Problem, d.Config.Path, d.Config.Digest, d.Config.Watch = word("version"), word("problem"), word("path"), word("digest"), word("watch")
		d.Config.Frozen = []string{word("frozen")}
		d.Config.Warnings[0].Message, d.Config.Warnings[0].Path = word("warning"), word("warned of")
		p := &d.Config.Rejection.Problems[0]
		p.File, p.Path, p.Message, p.Hint, d.Config.Rejection.Reason = word("file"), word("key"), word("message"), word("hint"), word("reason")
		d.Reload.Now[0].Key, d.Reload.Drained[0] = word("changed"), word("drained")
		q := &d.Pools[0]
		q.Name, q.Key, q.Phase, q.Why, q.Problem, q.Target, q.Service = word("pool"), word("pool key"), word("phase"), word("why"), word("trouble"), word("target"), word("service")
		q.Jobs[0].Subject, q.Jobs[0].Phase = word("subject"), word("job phase")
		q.MaxJobs = rapid.Int().Draw(t, "max jobs")
		for _, tell := range []times{d.ages(), clocks()} {
			for _, l := range d.lines(tell) {
				if len([]rune(l.text)) > statusColumns || strings.ContainsFunc(l.text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("%q", l.text)
				}
			}
		}
	})
}

func TestStatusExitsAsTheAgentFares(t *testing.T) {
	fine := fixedStatus()
	fine.Converged, fine.Ready, fine.NotReady, fine.Config.Applied, fine.Config.Rejection = true, true, nil, 3, nil
	for name, test := range map[string]struct {
		change func(*statusDocument)
		code   int
	}{
		"all is well":         {func(*statusDocument) {}, cli.ExitOK},
		"unhealthy":           {func(d *statusDocument) { d.Healthy = false }, cli.ExitFailure},
		"not ready":           {func(d *statusDocument) { d.Ready, d.NotReady = false, []statusReason{{"prod", "no answer"}} }, cli.ExitFailure},
		"not converged":       {func(d *statusDocument) { d.Converged = false }, cli.ExitFailure},
		"the file is refused": {func(d *statusDocument) { d.Config.Rejection = &statusRejection{} }, cli.ExitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			d := fine
			test.change(&d)
			server := agentOf(t, func() statusDocument { return d })
			for _, args := range [][]string{{"status", "--url", server.URL}, {"status", "--json", "--url", server.URL + "/status"}} {
				if said := tell(nil, args...); said.code != test.code || said.stderr != "" || said.stdout == "" {
					t.Errorf("%v: %+v", args, said)
				}
			}
		})
	}
}

func TestStatusInJSONIsWhatTheAgentAnswered(t *testing.T) {
	server := agentOf(t, fixedStatus)
	var d statusDocument
	if err := json.Unmarshal([]byte(tell(nil, "status", "--url", server.URL, "--json").stdout), &d); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(fixedStatus())
	got, _ := json.Marshal(d)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestStatusFindsTheAgentByItsConfiguration(t *testing.T) {
	server := agentOf(t, fixedStatus)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		file    string
		environ []string
	}{
		"a good file":                {"token: pul-a\nhttp_server_port: " + port + "\n", nil},
		"no token on this machine":   {"http_server_port: " + port + "\n", nil},
		"a refused file":             {"token: pul-a\nhttp_server_port: " + port + " # taken\npoling_interval: x\nlog_level: loud\n", nil},
		"a file that is no YAML":     {"token: [\nhttp_server_port: " + port + "\n", nil},
		"the variable":               {"token: pul-a\n", []string{"PULUMI_AGENT_HTTP_SERVER_PORT=" + port}},
		"the variable, refused file": {"token: pul-a\nlog_level: loud\nhttp_server_port: 1\n", []string{"PULUMI_AGENT_HTTP_SERVER_PORT=" + port}},
	} {
		t.Run(name, func(t *testing.T) {
			said := tell(test.environ, "status", "--config", fileOf(t, "agent.yaml", test.file))
			if said.code != cli.ExitFailure || !strings.Contains(said.stdout, "pid 4711") || said.stderr != "" {
				t.Errorf("%+v", said)
			}
		})
	}
}

func TestStatusSaysWhyItCannotAsk(t *testing.T) {
	free := freePort(t)
	with := func(answer func(w http.ResponseWriter)) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		t.Cleanup(server.Close)
		return server.URL
	}
	write := func(text string) string {
		return with(func(w http.ResponseWriter) { _, _ = w.Write([]byte(text)) })
	}
	config := fileOf(t, "agent.yaml", "token: pul-a\nhttp_server_port: "+strconv.Itoa(free)+"\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing listens":     {[]string{"--config", config}, "nothing listens there"},
		"no server":           {[]string{"--config", fileOf(t, "a.yaml", "token: pul-a\nhttp_server_port: 0\n")}, "set http_server_port"},
		"no file":             {[]string{"--config", config + "x"}, "no such file or directory: make it readable, or name another; or name the agent with --url"},
		"no URL":              {[]string{"--url", "localhost:8080"}, "--url must be a URL"},
		"a URL with a user":   {[]string{"--url", "http://me:secret@127.0.0.1"}, "--url must be a URL"},
		"both":                {[]string{"--url", "http://127.0.0.1", "--config", config}, "either --config or --url"},
		"an argument":         {[]string{"agent.yaml"}, "takes no argument"},
		"another program":     {[]string{"--url", with(func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) })}, "code 418"},
		"a way elsewhere":     {[]string{"--url", with(func(w http.ResponseWriter) { w.Header().Set("Location", "http://127.0.0.1:1"); w.WriteHeader(302) })}, "code 302"},
		"no JSON":             {[]string{"--url", write("<html>\x1b[2J")}, "not that of an agent"},
		"other JSON":          {[]string{"--url", write(`{"status":"healthy"}`)}, "not that of an agent"},
		"a wrong shape":       {[]string{"--url", write(fmt.Sprintf(`{"version":%d,"pools":"none"}`, statusVersion))}, "not that of an agent"},
		"deep JSON":           {[]string{"--url", write(strings.Repeat("[", 1<<20))}, "not that of an agent"},
		"a later version":     {[]string{"--url", write(fmt.Sprintf(`{"version":%d}`, statusVersion+1))}, "use the cmwa of the agent"},
		"a huge answer":       {[]string{"--url", write(`{"version":1,"problem":"` + strings.Repeat("x", statusBytes) + `"}`)}, "larger than 8 MiB"},
		"an answer cut short": {[]string{"--url", with(func(w http.ResponseWriter) { w.Header().Set("Content-Length", "100"); _, _ = w.Write([]byte("{")) })}, "broke off"},
	} {
		t.Run(name, func(t *testing.T) {
			said := tell(nil, append([]string{"status"}, test.args...)...)
			if said.code != cli.ExitUsage || said.stdout != "" || !strings.Contains(said.stderr, test.want) || strings.Count(said.stderr, "\n") != 1 || strings.Contains(said.stderr, "secret") {
				t.Errorf("%+v", said)
			}
		})
	}
}

func TestStatusSaysWhenThePortIsAGuess(t *testing.T) {
	const port = "PULUMI_AGENT_HTTP_SERVER_PORT="
	folder := t.TempDir()
	t.Chdir(folder)
	t.Setenv("HOME", folder)
	for name, test := range map[string]struct {
		file    string // none is no file at all
		environ []string
		port    int
		guessed string // none is no guess
	}{
		"a good file":                    {"token: pul-a\n", nil, 8080, ""},
		"a refused file with a port":     {"token: pul-a\nlog_level: loud\nhttp_server_port: 7001\n", nil, 7001, ""},
		"a file that is empty":           {" \n", nil, 8080, "agent.yaml is empty"},
		"an empty file and the variable": {"\n", []string{port + "7002"}, 7002, ""},
		"a file that is no YAML":         {"\x00\x01", nil, 8080, "agent.yaml cannot be used, as cmwa vet tells"},
		"a refused file without a port":  {"token: pul-a\nlog_level: loud\n", nil, 8080, "agent.yaml cannot be used"},
		"a port that is too large":       {"token: pul-a\nhttp_server_port: 99999\n", nil, 8080, "agent.yaml cannot be used"},
		"a port that is a word":          {"token: pul-a\nhttp_server_port: secret\n", nil, 8080, "agent.yaml cannot be used"},
		"no file":                        {"", nil, 8080, "there is no pulumi-workflow-agent.yaml in " + folder},
		"no file, and the variable":      {"", []string{port + "7003"}, 7003, ""},
		"a variable that is no port":     {"token: pul-a\n", []string{port + "secret"}, 8080, "PULUMI_AGENT_HTTP_SERVER_PORT is no port"},
	} {
		t.Run(name, func(t *testing.T) {
			q := inquiry{environ: readEnvironment(test.environ)}
			if test.file != "" {
				q.config = fileOf(t, "agent.yaml", test.file)
			}
			where, guessed, err := q.where()
			if want := fmt.Sprintf("http://127.0.0.1:%d/status", test.port); err != nil || where != want {
				t.Errorf("%s, %v, want %s", where, err, want)
			}
			if !strings.Contains(guessed, test.guessed) || (guessed == "") != (test.guessed == "") || strings.Contains(guessed, "secret") {
				t.Errorf("guessed because of %q, want %q", guessed, test.guessed)
			}
		})
	}
}

func TestWhoAsksAtAGuessedPortIsToldToNameTheAgent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that nothing answers, whatever listens at the usual port of this machine
	q := inquiry{config: fileOf(t, "agent.yaml", "token: [\n"), environ: environment{}}
	_, err := q.ask(ctx)
	want := "no agent answers at http://127.0.0.1:8080/status: it cannot be talked to: that port is a guess, because " + q.config + " cannot be used, as cmwa vet tells: name the agent with --url"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestAFileThatIsSpoiltWhileItIsFollowedDoesNotLoseTheAgent(t *testing.T) {
	server := agentOf(t, fixedStatus)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	q := inquiry{config: fileOf(t, "agent.yaml", "token: pul-a\nhttp_server_port: "+port+"\n"), environ: environment{}}
	for _, content := range []string{"", "\n", "garbage\n", "http_server_port: 99999\n"} {
		if _, err := q.ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(q.config, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := q.ask(t.Context()); err != nil || d.Agent.PID != 4711 {
		t.Errorf("%v, %v", d.Agent, err)
	}
}

func TestStatusWaitsForAnAnswerNoLongerThanItSays(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stop }))
	defer server.Close()
	defer close(stop)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	q := inquiry{url: server.URL, environ: environment{}}
	if _, err := q.ask(ctx); err == nil {
		t.Error("an end of waiting is no error")
	}
	if why := whyNoAnswer(context.DeadlineExceeded); why != "nothing within 5s" {
		t.Error(why)
	}
}

func TestChangesArePrintedOnceAndNothingElse(t *testing.T) {
	var out, wrong bytes.Buffer
	show := streams{stdout: &out, stderr: &wrong}.changes()
	look := func(d statusDocument, lost error) string {
		out.Reset()
		wrong.Reset()
		if err := show(d, lost); err != nil {
			t.Fatal(err)
		}
		return out.String() + wrong.String()
	}
	d := fixedStatus()
	if first := look(d, nil); !strings.Contains(first, "POOL") || !strings.Contains(first, "2026-11-21T10:18:00Z") {
		t.Error(first)
	}
	d.Now = d.Now.Add(time.Second)
	if second := look(d, nil); second != "" {
		t.Errorf("without a change:\n%s", second)
	}
	d.Pools[0].Phase, d.Pools[0].Until, d.Pools[0].Why = "polling", time.Time{}, ""
	if third := look(d, nil); !strings.HasPrefix(third, "prod ") || !strings.Contains(third, "polling") || strings.Contains(third, "POOL") || strings.Contains(third, "config") {
		t.Errorf("with one change:\n%s", third)
	}
	lost := errors.New("nobody there")
	if said := look(d, lost); said != "cmwa: nobody there\n" {
		t.Error(said)
	}
	if said := look(d, lost); said != "" {
		t.Errorf("said twice: %s", said)
	}
	if said := look(d, nil); said != "" {
		t.Errorf("back, and as before: %s", said)
	}
	d.Pools, d.Config.Rejection = d.Pools[:1], nil
	if gone := strings.TrimSpace(look(d, nil)); gone != "gone: refused\ngone: pool a-pool-with-a-name-that-is-much-too-long-for-a-table, a-2" {
		t.Error(gone)
	}
}

func TestWatchFollowsUntilItIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	looks := 0
	server := agentOf(t, func() statusDocument {
		d := fixedStatus()
		d.Config.Desired = uint64(looks)
		if looks++; looks == 3 {
			d.Healthy, d.Ready, d.Converged, d.Config.Rejection, d.Config.Applied = true, true, true, nil, 2
			time.AfterFunc(100*time.Millisecond, stop)
		}
		return d
	})
	var out, wrong bytes.Buffer
	code := execute(ctx, context.Background(), []string{"status", "--url", server.URL, "--watch"}, streams{stdout: &out, stderr: &wrong})
	if code != cli.ExitOK || wrong.Len() > 0 {
		t.Errorf("exit code %d, %s", code, wrong.String())
	}
	for _, want := range []string{"generation 0", "generation 1", "generation 2, in force", "gone: refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
	if strings.Count(out.String(), "POOL") != 1 {
		t.Errorf("what had not changed was printed again:\n%s", out.String())
	}
}

func TestALengthOfTimeIsToldInTheTwoUnitsThatMatter(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 12*time.Minute: "3h12m", 50 * time.Hour: "2d", 1<<63 - 1: "106751d",
	} {
		if got := length(d); got != want {
			t.Errorf("%s: %s, want %s", fmt.Sprint(d), got, want)
		}
	}
}

func TestWhatLastsIsToldByItsLengthAndWhatHappenedByItsAge(t *testing.T) {
	d := fixedStatus()
	text := func(tell times) (all string) {
		for _, l := range d.lines(tell) {
			all += l.text + "\n"
		}
		return all
	}
	for tell, wants := range map[string][]string{
		text(d.ages()): {"started 3h12m ago", "wanted for 20s", "as it is now, 5s ago", "reload   20s ago", "goes on in 30s", "running  for 1m30s  0b7c"},
		text(clocks()): {"started 2026-11-21T10:18:00Z", "wanted since 2026-11-21T13:29:40Z", "goes on 2026-11-21T13:30:30Z", "running  since 2026-11-21T13:28:30Z  0b7c"},
	} {
		for _, want := range wants {
			if !strings.Contains(tell, want) {
				t.Errorf("there is no %q in\n%s", want, tell)
			}
		}
	}
}

func TestATerminalSeesThePictureDrawnOver(t *testing.T) {
	var out bytes.Buffer
	s := streams{stdout: &out}
	if err := s.redraw(fixedStatus(), nil); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.HasPrefix(text, "\x1b[Hagent ") || !strings.HasSuffix(text, "\x1b[K\n\x1b[J") || strings.Count(text, "\x1b[K\n") != strings.Count(text, "\n") {
		t.Errorf("%q", text)
	}
	out.Reset()
	if err := s.redraw(fixedStatus(), errors.New("nobody there")); err != nil || !strings.HasPrefix(out.String(), "\x1b[Hlost     nobody there\x1b[K\nagent ") {
		t.Errorf("%v: %q", err, out.String())
	}
}

// once runs a program of the world to its end.
func (w *world) once(args ...string) told {
	w.t.Helper()
	return w.onceWith(nil, args...)
}

// onceWith is once with further variables.
func (w *world) onceWith(env []string, args ...string) told {
	w.t.Helper()
	var out, wrong bytes.Buffer
	cmd := exec.Command(filepath.Join(w.bin, "cmwa"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.folder, &out, &wrong
	cmd.Env = append(append(os.Environ(), w.environ()...), env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return told{cmd.ProcessState.ExitCode(), out.String(), wrong.String()}
}

func TestWhoSavesAFileSeesWhatBecomesOfIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	port, next := freePort(t), freePort(t)
	w.agent(fmt.Sprintf("http_server_port: %d", port))
	config := filepath.Join(w.folder, "agent.yaml")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, content string) string {
		path := filepath.Join(w.folder, name)
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
	var d statusDocument
	status := func(what string, code int, so func() bool) {
		t.Helper()
		w.eventually(what, func() bool {
			said := w.once("status", "--json", "--config", config)
			d = statusDocument{}
			return said.code == code && json.Unmarshal([]byte(said.stdout), &d) == nil && so()
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

	status("the first generation is in force", cli.ExitOK, func() bool { return d.Config.Applied == 1 && d.Config.Path == config && len(d.Pools) == 1 })
	watching := w.start("status", nil, "cmwa", "status", "--watch", "--config", config)
	watching.says("generation 1, in force")
	witness := filepath.Join(w.folder, "go-on")
	w.queue("long", order{Steps: []step{{Name: "a", Run: "until [ -e " + witness + " ]; do sleep 0.05; done"}}})
	status("the job is told", cli.ExitOK, func() bool { return len(d.Pools[0].Jobs) == 1 && d.Pools[0].Jobs[0].Phase == "running" })

	second := strings.Replace(string(good), "polling_interval: 200ms", "polling_interval: 300ms", 1)
	if said := w.once("plan", "--live", "--config", config, file("candidate.yaml", second)); said.code != exitChanges || !strings.Contains(said.stdout, "200ms -> 300ms") {
		t.Errorf("the plan before the edit: %+v", said)
	}
	save(second)
	status("the second generation is in force", cli.ExitOK, func() bool {
		return d.Config.Applied == 2 && d.Reload != nil && has(d.Reload.Now, "default", "polling_interval")
	})

	save(second + "poling_interval: 1s\nlog_level: loud\n")
	status("the bad edit is refused", cli.ExitFailure, func() bool {
		r := d.Config.Rejection
		return d.Config.Applied == 2 && d.Healthy && r != nil && len(r.Problems) > 0 && r.Problems[0].File == config && r.Problems[0].Line > 0
	})
	w.eventually("the metrics tell of it", func() bool { return metric("cmwa_config_rejected_total 1") && !metric("cmwa_config_problems 0") })
	if said := w.once("plan", "--live", "--config", config, file("candidate.yaml", second)); said.code != exitInvalid || !strings.Contains(said.stderr, "the agent refuses its file") {
		t.Errorf("the plan beside a refused file: %+v", said)
	}
	if said := w.once("status", "--config", config); said.code != cli.ExitFailure || !strings.Contains(said.stdout, "REFUSED") || !strings.Contains(said.stdout, "log_level") {
		t.Errorf("%+v", said)
	}
	watching.says("REFUSED")
	save(second)
	status("the edit is undone", cli.ExitOK, func() bool { return d.Config.Applied == 2 && d.Config.Rejection == nil && d.Config.Rejected == 1 })
	watching.says("gone: refused")

	save(strings.Replace(second, fmt.Sprintf("http_server_port: %d", port), fmt.Sprintf("http_server_port: %d", next), 1))
	status("the agent answers at its new port", cli.ExitOK, func() bool { return d.Config.Applied == 3 && len(d.Pools[0].Jobs) == 1 })
	watching.says("generation 3, in force")
	if err := os.WriteFile(witness, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.await("long", "succeeded")
	watching.signal(os.Interrupt)
	watching.exit(cli.ExitOK)
	if output := watching.output(); strings.Contains(output, "\x1b") || strings.Contains(output, w.pool) {
		t.Errorf("what stands in a file steers a terminal, or is a secret:\n%s", output)
	}
}
