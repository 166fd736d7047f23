package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// pollCounter is a proxy between agents and the service. It counts the polls of each
// token and the claims of each job.
type pollCounter struct {
	server *http.Server

	mu     sync.Mutex
	polls  map[string]int       // by token
	first  map[string]time.Time // time of the first poll, by token
	last   map[string]time.Time // time of the last poll, by token
	claims map[string]int       // by deployment
}

// countPolls starts a pollCounter. From then on, its URL is the world's URL of the service.
func (w *world) countPolls() (v *pollCounter) {
	w.t.Helper()
	target, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(target.Hostname(), "0"))
	if err != nil {
		w.t.Fatal(err)
	}
	v = &pollCounter{
		polls: map[string]int{}, first: map[string]time.Time{}, last: map[string]time.Time{},
		claims: map[string]int{},
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.ErrorLog = log.New(io.Discard, "", 0) // the errors are of polls that agents cancel
	proxy.ModifyResponse = v.answered
	v.server = &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if isPoll(r) {
			v.asked(strings.TrimPrefix(r.Header.Get("Authorization"), "token "))
		}
		proxy.ServeHTTP(rw, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = v.server.Serve(listener) }()
	w.t.Cleanup(func() { _ = v.server.Close(); <-done; transport.CloseIdleConnections() })
	w.url = "http://" + listener.Addr().String()
	return v
}

func isPoll(r *http.Request) bool { return r.URL.Path == "/api/deployments/poll" }

func (v *pollCounter) asked(token string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	v.polls[token]++
	v.last[token] = now
	if v.polls[token] == 1 {
		v.first[token] = now
	}
}

func (v *pollCounter) answered(r *http.Response) error {
	if !isPoll(r.Request) || r.StatusCode != http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	var poll struct{ DeploymentID string }
	if err := json.Unmarshal(text, &poll); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.claims[poll.DeploymentID]++
	return nil
}

// count returns the number of polls of a token.
func (v *pollCounter) count(token string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.polls[token]
}

// firstOf returns the time of the first poll of a token.
func (v *pollCounter) firstOf(token string) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.first[token]
}

// claimed returns how often agents claimed the job of a stack.
func (v *pollCounter) claimed(w *world, stack string) int {
	w.mu.Lock()
	id := w.ids[stack]
	w.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.claims[id]
}

// waitPoll blocks until a token has polled again.
func (w *world) waitPoll(v *pollCounter, token string) {
	w.t.Helper()
	before := v.count(token)
	w.eventually("the pool polls", func() bool { return v.count(token) > before })
}

// wantNoPolls checks that one token does not poll while another one polls five times.
func (w *world) wantNoPolls(v *pollCounter, token, other string) {
	w.t.Helper()
	before, from := v.count(token), v.count(other)
	w.eventually("the other pool has polled five times", func() bool { return v.count(other) >= from+5 })
	if more := v.count(token) - before; more > 0 {
		w.t.Errorf("a pool that must not poll has polled %d times", more)
	}
}

// servicePool is a pool at the service.
type servicePool struct{ id, token string }

// pools creates further pools at the service.
func (w *world) pools(count int) []servicePool {
	w.t.Helper()
	made := make([]servicePool, count)
	for i := range made {
		var answer struct{ ID, TokenValue string }
		w.call(http.MethodPost, "/api/orgs/organization/agent-pools",
			map[string]string{"name": fmt.Sprint("pool-", i)}, &answer)
		made[i] = servicePool{answer.ID, answer.TokenValue}
	}
	return made
}

// file returns the path of the configuration, which is alone in its directory.
func (w *world) file() string { return filepath.Join(w.directory, "config", "agent.yaml") }

// content returns a configuration with these lines. It adds the lines that all tests share,
// except those whose keys are set already.
func (w *world) content(lines ...string) string {
	lines = slices.Clone(lines)
	own := len(lines)
	for _, ours := range []string{
		"service_url: " + w.url, "deploy_target: " + w.target, "working_directory: " + w.bin, "pull_image: false",
		"polling_interval: 100ms", "job_status_loop_interval: 1s", "http_server_port: 0", "request_retry_wait: 200ms",
		hostNetwork,
	} {
		key, _, _ := strings.Cut(ours, ":")
		if !slices.ContainsFunc(lines[:own], func(line string) bool { return strings.HasPrefix(line, key+":") }) {
			lines = append(lines, ours)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// save replaces the configuration by one with these lines, as replace does.
func (w *world) save(lines ...string) {
	w.t.Helper()
	w.replace(w.file(), w.content(lines...))
}

// replace writes a new file and renames it to path, where it replaces the old file.
func (w *world) replace(path, content string) {
	w.t.Helper()
	w.must(os.WriteFile(path+".new", []byte(content), 0o600))
	w.must(os.Rename(path+".new", path))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// follow starts an agent whose first configuration has these lines, and blocks until
// the agent has converged.
func (w *world) follow(env []string, lines ...string) *program {
	w.t.Helper()
	return w.followText(env, w.content(lines...))
}

// followText is like follow. Its argument is the whole text of the configuration.
func (w *world) followText(env []string, text string) *program {
	w.t.Helper()
	return w.followBy("cmwa", env, text)
}

// followBy is like followText, and runs another program as the agent.
func (w *world) followBy(command string, env []string, text string) *program {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.file()), 0o700))
	w.replace(w.file(), text)
	agent := w.start("agent", env, command, "run", "--config", w.file())
	agent.waitFor("converged")
	return agent
}

// hold queues a job that runs as a process until it is released, and blocks until it
// runs.
func (w *world) hold(stack, poolID string) {
	w.t.Helper()
	w.queueHeld(stack, poolID)
	w.waitStarted(stack)
}

func (w *world) queueHeld(stack, poolID string) {
	w.t.Helper()
	pipe := filepath.Join(w.directory, stack+".pipe")
	w.must(syscall.Mkfifo(pipe, 0o600))
	w.queue(stack, order{
		Steps:   []step{{Name: "wait", Run: "echo running; read line < " + pipe + "; echo finished"}},
		Request: map[string]any{"agentPoolID": poolID},
	})
}

// waitStarted blocks until the step has printed "running". Its last letter matters: the runner holds
// a line back while it may be the beginning of a secret whose next bytes follow on another line,
// and the base64 form of DOCKER_HOST begins with a d.
func (w *world) waitStarted(stack string) {
	w.t.Helper()
	w.eventually(stack+" has started", func() bool { return strings.Contains(w.log(stack), "\nrunning\n") })
}

// release releases a held job, and blocks until it has succeeded.
func (w *world) release(stack string) {
	w.t.Helper()
	pipe, err := os.OpenFile(filepath.Join(w.directory, stack+".pipe"), os.O_RDWR, 0)
	w.must(err)
	defer pipe.Close()
	_, err = pipe.WriteString("go\n")
	w.must(err)
	w.waitSucceeded(stack)
}

// waitSucceeded blocks until a held job has succeeded, and checks that it ran once.
func (w *world) waitSucceeded(stack string) {
	w.t.Helper()
	if status := w.await(stack, "succeeded", "failed", "skipped"); status != "succeeded" {
		w.t.Errorf("%s is %s:\n%s", stack, status, w.log(stack))
	}
	log := w.log(stack)
	if started, finished := strings.Count(log, "\nrunning\n"), strings.Count(log, "\nfinished\n"); started != 1 ||
		finished != 1 {
		w.t.Errorf("%s has started %d times and finished %d times:\n%s", stack, started, finished, log)
	}
}

// queueShort queues a job that ends immediately.
func (w *world) queueShort(stack, poolID string) {
	w.t.Helper()
	w.queue(stack, order{Steps: []step{{Name: "a", Run: "true"}}, Request: map[string]any{"agentPoolID": poolID}})
}

func TestReloadLastOfTwoEdits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(3)
	agent := w.follow(nil, "token: "+p[0].token)
	w.waitPoll(v, p[0].token)
	began := time.Now()
	w.save("token: " + p[1].token)
	w.save("token: " + p[2].token)
	within := time.Since(began) < 40*time.Millisecond
	w.waitPoll(v, p[2].token)
	w.wantNoPolls(v, p[0].token, p[2].token)
	w.wantNoPolls(v, p[1].token, p[2].token)
	if count := v.count(p[1].token); within && count > 0 {
		t.Errorf("the first of two edits was in force for %d polls, want none", count)
	}
	agent.waitFor("tune pool default")
}

func TestReloadSupersedesPreparedPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(3)
	socket := filepath.Join(t.TempDir(), "engine.sock") // does not respond until the end of the test
	listener, err := net.Listen("unix", socket)
	w.must(err)
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	engine := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		http.Error(rw, "too late", http.StatusServiceUnavailable)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = engine.Serve(listener) }()
	t.Cleanup(func() { close(answer); _ = engine.Close(); <-done })
	steady := fmt.Sprintf("{name: steady, token: %s}", p[0].token)
	agent := w.follow([]string{"DOCKER_HOST=unix://" + socket}, "pools: ["+steady+"]")

	w.save(fmt.Sprintf("pools: [%s, {name: slow, token: %s, deploy_target: docker}]", steady, p[1].token))
	select {
	case <-asked:
	case <-time.After(storyLimit):
		t.Fatal("the engine got no request")
	}
	w.waitPoll(v, p[0].token)
	began := time.Now()
	w.save(fmt.Sprintf("pools: [%s, {name: quick, token: %s}]", steady, p[2].token))
	w.waitPoll(v, p[2].token)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("an engine that does not respond delayed the next edit by %s", took)
	}
	if count := v.count(p[1].token); count > 0 {
		t.Errorf("a pool whose engine does not respond has polled %d times", count)
	}
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=3`))
}

func TestReloadUndoOfBadEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	agent := w.follow(nil, "token: "+p[0].token)
	w.save("token: "+p[0].token, "log_level: loud")
	agent.waitFor("configuration rejected")
	w.save("token: " + p[0].token)
	agent.waitForMatch(regexp.MustCompile(`configuration file is valid again, no change.*generation=1`))
	w.waitPoll(v, p[0].token)
	for _, never := range []string{"tune pool", "drain pool", "set the agent", "generation=2"} {
		if strings.Contains(agent.output(), never) {
			t.Errorf("the log contains %q after the edit was undone:\n%s", never, agent.output())
		}
	}
}

func TestReloadRenamedPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	agent := w.follow(nil, fmt.Sprintf("pools: [{name: old, token: %s}]", p[0].token))
	w.hold("held", p[0].id)
	w.save(fmt.Sprintf("pools: [{name: new, token: %s}]", p[0].token))
	agent.waitFor("start pool new")
	agent.waitFor("drain pool old (running jobs: 1)")
	w.queueShort("next", p[0].id)
	w.await("next", "succeeded")
	w.release("held")
	agent.waitFor("remove pool old")
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=2`))
	for _, stack := range []string{"held", "next"} {
		if claims := v.claimed(w, stack); claims != 1 {
			t.Errorf("%s was claimed %d times, want once", stack, claims)
		}
	}
}

func TestReloadRevivesDrainingPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	v, p := w.countPolls(), w.pools(2)
	other := fmt.Sprintf("{name: other, token: %s}", p[1].token)
	both := fmt.Sprintf("pools: [%s, {name: back, token: %s, max_concurrent_workflows: 2}]", other, p[0].token)
	agent := w.follow(nil, both)
	held := order{
		Steps:   []step{{Name: "wait", Run: "mkfifo /tmp/pipe; echo running; read line < /tmp/pipe; echo finished"}},
		Request: map[string]any{"agentPoolID": p[0].id},
	}
	w.queue("first", held)
	w.waitStarted("first")
	w.save("pools: [" + other + "]")
	agent.waitFor("drain pool back (running jobs: 1)")
	w.waitPoll(v, p[1].token) // meanwhile, a poll that was in progress gets its response
	w.wantNoPolls(v, p[0].token, p[1].token)
	w.save(both)
	agent.waitFor("revive pool back")
	w.queue("second", held)
	w.waitStarted("second")
	var named []string
	for _, stack := range []string{"first", "second"} {
		ids := w.containers(stack)
		if len(ids) != 1 {
			t.Fatalf("%s has %d containers", stack, len(ids))
		}
		named = append(named,
			w.engine("inspect", "--format",
				`{{index .Config.Labels "cmwa.agent"}} {{index .Config.Labels "cmwa.pool"}}`, ids[0]))
	}
	if named[0] != named[1] {
		t.Errorf("the agent and pool of the two jobs are %q and %q", named[0], named[1])
	}
	for _, stack := range []string{"first", "second"} {
		w.engine("exec", w.containers(stack)[0], "sh", "-c", "echo go > /tmp/pipe")
		w.waitSucceeded(stack)
		if claims := v.claimed(w, stack); claims != 1 {
			t.Errorf("%s was claimed %d times, want once", stack, claims)
		}
	}
	if starts := strings.Count(agent.output(), "start pool back"); starts != 1 {
		t.Errorf("the pool was started %d times:\n%s", starts, agent.output())
	}
}

func TestReloadLimitOfJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	agent := w.follow(nil, "token: "+p[0].token, "max_concurrent_workflows: 1")
	w.hold("a", p[0].id)
	w.queueHeld("b", p[0].id)
	w.queueHeld("c", p[0].id)
	if claims := v.claimed(w, "b") + v.claimed(w, "c"); claims > 0 {
		t.Errorf("%d jobs were claimed beyond the limit", claims)
	}
	w.save("token: "+p[0].token, "max_concurrent_workflows: 3")
	w.waitStarted("b")
	w.waitStarted("c")
	w.save("token: "+p[0].token, "max_concurrent_workflows: 1")
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=3`))
	w.queueShort("d", p[0].id)
	w.release("a")
	w.release("b")
	if status, _ := w.status("d"); status != "not-started" {
		t.Errorf("a job was claimed beyond the lowered limit: its status is %s", status)
	}
	w.release("c")
	w.await("d", "succeeded")
	held, lowered := 0, false
	for line := range strings.Lines(agent.output()) {
		switch {
		case strings.Contains(line, "job claimed"):
			held++
			if lowered && held > 1 {
				t.Errorf("the agent holds %d jobs after the limit was lowered to 1:\n%s", held, agent.output())
			}
		case strings.Contains(line, "job succeeded"):
			held--
		case regexp.MustCompile(`converged.*generation=3`).MatchString(line):
			lowered = true
		}
	}
}

func TestReloadLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(2)
	agent := w.follow(nil, "token: "+p[0].token)
	if strings.Contains(agent.output(), "DBG") {
		t.Errorf("details are logged at level info:\n%s", agent.output())
	}
	w.save("token: of-no-pool", "log_level: debug", "log_format: json")
	agent.waitForMatch(regexp.MustCompile(`(?m)^\{.*"msg":"converged".*"generation":2`))
	agent.waitForMatch(regexp.MustCompile(`(?m)^\{.*"level":"DEBUG".*"msg":"poll failed"`)) // a retry
	w.save("token: "+p[1].token, "log_level: error")
	w.waitPoll(v, p[1].token)
	before := len(agent.output())
	w.queueShort("two", p[1].id)
	w.await("two", "succeeded")
	w.save("token: "+p[1].token, "log_level: loud")
	agent.waitForMatch(regexp.MustCompile(`(?m)^[^{\n]*configuration rejected.*log_level`))
	if after := agent.output()[before:]; strings.Count(after, "\n") != 1 {
		t.Errorf("at level error, the agent logs more than one line:\n%s", after)
	}
}

func TestReloadHTTPServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	port := func(n int) string { return fmt.Sprint("http_server_port: ", n) }
	health := func(n int) int { return probe(fmt.Sprintf("http://127.0.0.1:%d/healthz", n)) }
	from, to := freePort(t), freePort(t)
	agent := w.follow(nil, "token: "+p[0].token, port(from))
	w.eventually("the first port answers", func() bool { return health(from) == http.StatusOK })
	w.save("token: "+p[0].token, port(to))
	w.eventually("the new port answers", func() bool { return health(to) == http.StatusOK })
	w.eventually("the old port is closed", func() bool { return health(from) == 0 })

	taken, err := net.Listen("tcp", ":0")
	w.must(err)
	number := taken.Addr().(*net.TCPAddr).Port
	w.save("token: "+p[0].token, port(number))
	agent.waitForMatch(regexp.MustCompile(`cannot change settings of the agent.*set http_server_port to a free port`))
	if got := health(to); got != http.StatusOK {
		t.Errorf("while the new port is in use, the previous port answers %d, want 200", got)
	}
	w.waitPoll(v, p[0].token)
	w.must(taken.Close())
	w.eventually("the new port, which is free now, answers", func() bool { return health(number) == http.StatusOK })
	w.eventually("the previous port is closed", func() bool { return health(to) == 0 })
}

func TestReloadTokenFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(2)
	secret := filepath.Join(t.TempDir(), "token")
	w.replace(secret, p[0].token)
	w.follow(nil, "token_file: "+secret)
	w.waitPoll(v, p[0].token)
	w.replace(secret, p[1].token+"\n")
	w.waitPoll(v, p[1].token)
	w.wantNoPolls(v, p[0].token, p[1].token)
}

func TestReloadBadEdit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	good := []string{"token: " + p[0].token, "max_concurrent_workflows: 2"}
	bad := append(slices.Clone(good), "log_level: loud")
	agent := w.follow(nil, good...)
	w.hold("held", p[0].id)
	w.save(bad...)
	place := regexp.MustCompile(`configuration rejected.*agent\.yaml:3:12: log_level`)
	agent.waitForMatch(place)
	w.save(bad...) // the same content
	agent.signal(syscall.SIGHUP)
	w.waitPoll(v, p[0].token)
	w.queueShort("next", p[0].id)
	w.await("next", "succeeded")
	w.release("held")
	if count := len(place.FindAllString(agent.output(), -1)); count != 1 {
		t.Errorf("a bad edit was logged %d times, want once:\n%s", count, agent.output())
	}
}

func TestReloadOnHangUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(2)
	agent := w.follow(nil, "token: "+p[0].token)
	w.waitPoll(v, p[0].token)
	aside := filepath.Join(w.directory, "aside.yaml") // the same file, in a directory that is not watched
	w.must(os.Link(w.file(), aside))
	w.must(os.WriteFile(aside, []byte(w.content("token: "+p[1].token)), 0o600))
	began := time.Now()
	agent.signal(syscall.SIGHUP)
	w.waitPoll(v, p[1].token)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("after the HUP, it took %s until the change was in force, want at most 10 s", took)
	}
}

func TestReloadFileThatAppears(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(3)
	home, here := filepath.Join(w.directory, "house", schema.FileName), filepath.Join(w.directory, schema.FileName)
	w.must(os.Mkdir(filepath.Dir(home), 0o700))
	w.replace(filepath.Join(w.directory, "token"), p[0].token)
	w.start("agent", []string{
		"HOME=" + filepath.Dir(home), "PULUMI_AGENT_SERVICE_URL=" +
			w.url, "PULUMI_AGENT_DEPLOY_TARGET=process", "PULUMI_AGENT_WORKING_DIRECTORY=" + w.bin,
		"PULUMI_AGENT_POLLING_INTERVAL=100ms", "PULUMI_AGENT_HTTP_SERVER_PORT=0", "PULUMI_AGENT_TOKEN_FILE=" +
			filepath.Join(w.directory, "token"),
	}, "cmwa", "run")
	w.waitPoll(v, p[0].token)
	own := func(p servicePool) string { return "pools: [{name: own, token: " + p.token + "}]\n" }
	w.replace(home, own(p[1]))
	w.waitPoll(v, p[1].token)
	w.replace(here, own(p[2]))
	w.waitPoll(v, p[2].token)
	w.must(os.Remove(here))
	w.waitPoll(v, p[1].token)
	w.wantNoPolls(v, p[2].token, p[1].token)
}

func TestReloadWarnsOfFileMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	v, p := w.countPolls(), w.pools(2)
	programs, err := staticPrograms()
	w.must(err)
	w.target = "process"
	file := filepath.Join(t.TempDir(), "agent.yaml")
	w.must(os.WriteFile(file, []byte(w.content("working_directory: /run", "token: "+p[0].token)), 0o600))
	container := w.engine("run", "--detach", "--volume", programs+"/cmwa:/run/cmwa:ro", "--volume", programs+
		"/workflow-runner:/run/workflow-runner:ro", "--volume", file+":/run/agent.yaml:ro",
		"--env", "TMPDIR=/", "--entrypoint", "/run/cmwa", baseImage, "run", "--config", "/run/agent.yaml")
	t.Cleanup(func() { w.engine("rm", "--force", container) })
	w.waitPoll(v, p[0].token)
	logs := func() string {
		output, err := exec.Command("docker", "logs", container).CombinedOutput()
		w.must(err)
		return string(output)
	}
	w.eventually("the log warns of the mount", func() bool { return strings.Contains(logs(), "mounted by itself") })
	output := logs()
	if n := strings.Count(output, "mounted by itself"); n != 1 || !strings.Contains(output, "file=/run/agent.yaml") {
		t.Errorf("the log warns %d times, want once:\n%s", n, output)
	}
	w.must(os.WriteFile(file, []byte(w.content("working_directory: /run", "token: "+p[1].token)),
		0o600)) // a write in place: the agent gets no event
	w.waitPoll(v, p[1].token)
}

func TestReloadEventOverflow(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(2)
	agent := w.follow(nil, "token: "+p[0].token)
	agent.signal(syscall.SIGSTOP)
	noise := filepath.Join(filepath.Dir(w.file()), "noise")
	for range most/2 + 1000 {
		w.must(os.WriteFile(noise, nil, 0o600))
		w.must(os.Remove(noise))
	}
	w.save("token: " + p[1].token)
	agent.signal(syscall.SIGCONT)
	began := time.Now()
	w.waitPoll(v, p[1].token)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the reload took %s, want at most 10 s: only a check without an event takes longer", took)
	}
}

// within returns the tokens that have polled in the last span, sorted.
func (v *pollCounter) within(span time.Duration) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var tokens []string
	for token, last := range v.last {
		if time.Since(last) <= span {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return tokens
}

// writers returns functions that write the configuration in the ways that people and
// programs use. The keys are names of these ways.
func (w *world) writers() map[string]func(content []byte) {
	path, count := w.file(), 0
	directory := filepath.Dir(path)
	next := func(form string) string { count++; return fmt.Sprintf(form, count) }
	write := func(path string, content []byte) { w.must(os.WriteFile(path, content, 0o600)) }
	link := func(target, name string) {
		w.must(os.Symlink(target, name+".tmp"))
		w.must(os.Rename(name+".tmp", name))
	}
	return map[string]func([]byte){
		"in place": func(content []byte) { write(path, content) },
		"append": func(content []byte) {
			write(path, content[:len(content)/2])
			file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			w.must(err)
			_, err = file.Write(content[len(content)/2:])
			w.must(err)
			w.must(file.Close())
		},
		"rename over": func(content []byte) { w.replace(path, string(content)) },
		"backup, then new": func(content []byte) {
			w.must(os.Rename(path, path+"~"))
			write(path, content)
		},
		"sed": func(content []byte) {
			write(path, []byte("line\n")) // without a line, sed has nothing to replace
			source := filepath.Join(w.directory, "sed-source")
			write(source, content)
			if out, err := exec.Command("sed", "-i", "-n", "1r "+source, path).CombinedOutput(); err != nil {
				w.t.Fatalf("sed: %v: %s", err, out)
			}
		},
		"delete and return": func(content []byte) {
			w.must(os.Remove(path))
			write(path, content)
		},
		"swap of ..data": func(content []byte) {
			volume := next("..2026_11_21_%d")
			w.must(os.Mkdir(filepath.Join(directory, volume), 0o700))
			write(filepath.Join(directory, volume, "agent.yaml"), content)
			before, _ := os.Readlink(filepath.Join(directory, "..data"))
			link(volume, filepath.Join(directory, "..data"))
			if target, _ := os.Readlink(path); target != "..data/agent.yaml" {
				link("..data/agent.yaml", path)
			}
			if before != "" {
				w.must(os.RemoveAll(filepath.Join(directory, before)))
			}
		},
		"swap of a link": func(content []byte) {
			name := next("version-%d.yaml")
			write(filepath.Join(directory, name), content)
			before, _ := os.Readlink(path)
			link(name, path)
			if strings.HasPrefix(before, "version-") {
				w.must(os.Remove(filepath.Join(directory, before)))
			}
		},
		"another directory": func(content []byte) {
			w.must(os.Mkdir(directory+".new", 0o700))
			write(filepath.Join(directory+".new", "agent.yaml"), content)
			w.must(os.Rename(directory, directory+".old"))
			w.must(os.Rename(directory+".new", directory))
			w.must(os.RemoveAll(directory + ".old"))
		},
	}
}

// setting is one pool in a configuration of TestReloadThousandEdits.
type setting struct {
	absent  bool
	renamed bool
	most    int // jobs at a time
}

// edition is one configuration of TestReloadThousandEdits.
type edition struct {
	pools [poolCount]setting
	most  int      // limit of the jobs of all pools together
	lines []string // lines without an effect on what the test checks
}

const (
	poolCount   = 8
	dockerPools = 7 // the first pools use docker
	heldOfEach  = 3 // jobs of each pool that run during the whole test
	heldOfAll   = poolCount * heldOfEach
	plenty      = 1000
)

func name(i int, renamed bool) string {
	if renamed {
		return fmt.Sprintf("pool-%d-renamed", i)
	}
	return fmt.Sprint("pool-", i)
}

// fullEdition returns a configuration with all pools under their first names, and a
// limit above the number of held jobs.
func fullEdition() (f edition) {
	f.most = plenty
	f.lines = []string{"polling_interval: 500ms"}
	for i := range f.pools {
		f.pools[i].most = heldOfEach + 2
	}
	return f
}

// randomEdition returns a random configuration with at least one pool.
func randomEdition(random *rand.Rand) (f edition) {
	f.most = plenty
	if random.IntN(8) == 0 {
		f.most = 1 + random.IntN(heldOfAll-1)
	}
	for i := range f.pools {
		f.pools[i] = setting{
			absent: random.IntN(3) == 0, renamed: random.IntN(4) == 0, most: 1 + random.IntN(2*heldOfEach),
		}
	}
	f.pools[random.IntN(poolCount)].absent = false
	pick := func(values ...string) { f.lines = append(f.lines, values[random.IntN(len(values))]) }
	pick("polling_interval: 500ms", "polling_interval: 550ms", "polling_interval: 0.6s")
	pick("log_level: info", "log_level: debug")
	pick("request_retry_count: 2", "request_retry_count: 5")
	pick("circuit_breaker_timeout: 5s", "circuit_breaker_failures: 7")
	pick("docker: {network: host, memory: 64m}", "docker: {network: host, labels: [team=one]}",
		"env_forward_allowlist: [LANG]")
	pick("shutdown_timeout: 30s", "health_threshold: 5m")
	return f
}

// text returns the text of the configuration. The pools come last, in YAML's block style.
func (f edition) text(w *world, pools []servicePool, port int) string {
	lines := append(slices.Clone(f.lines), fmt.Sprint("max_concurrent_workflows: ", f.most),
		fmt.Sprint("http_server_port: ", port))
	var b strings.Builder
	b.WriteString(w.content(lines...) + "pools:\n")
	for i, p := range f.pools {
		if p.absent {
			continue
		}
		fmt.Fprintf(&b, "  - name: %s\n    token: %s\n    max_concurrent_workflows: %d\n", name(i, p.renamed),
			pools[i].token, p.most)
		if i >= dockerPools {
			b.WriteString("    deploy_target: process\n")
		}
	}
	return b.String()
}

// spoilers are functions that change a valid file so that the agent must reject it.
var spoilers = []func(good string) string{
	func(good string) string { return "log_format: loud\n" + good },
	func(good string) string { return good + "pools: [\n" },
	func(good string) string { return "\tindented: by a tab\n" + good },
	func(good string) string { return good + "---\n" + good },
	func(good string) string { return good + "  - name: without-token\n" },
	func(good string) string { return good + "  - {name: twice, token: a}\n  - {name: twice, token: b}\n" },
	func(good string) string { return good + "  - {name: later, token: a, deploy_target: ecs}\n" },
	func(good string) string { return good + "\x00" },
	func(good string) string { return good[:len(good)/2] + "\n]]\n" },
	func(good string) string { return "shutdown_timeout: -1s\n" + good },
	func(good string) string { return strings.Repeat("[", 20_000) },
	func(good string) string { return "max_concurrent_workflows: 0.5\n" + good },
}

// pollingTokens returns the tokens of the pools that poll when this configuration is in
// force and only the held jobs run.
func (f edition) pollingTokens(pools []servicePool) []string {
	var tokens []string
	for i, p := range f.pools {
		if !p.absent && f.most > heldOfAll && (p.renamed || p.most > heldOfEach) {
			tokens = append(tokens, pools[i].token)
		}
	}
	slices.Sort(tokens)
	return tokens
}

// states returns the state that /healthz must show for each pool when this configuration is
// in force and only the held jobs run: the number of jobs, and whether the pool drains.
func (f edition) states() map[string]string {
	states := map[string]string{}
	for i, p := range f.pools {
		working := fmt.Sprint(heldOfEach, " jobs")
		if p.absent || p.renamed {
			working += ", draining"
		}
		states[name(i, false)] = working
		if p.renamed && !p.absent {
			states[name(i, true)] = "0 jobs"
		}
	}
	return states
}

// statesOf returns the state that /healthz of an agent shows for each pool.
func statesOf(port int) map[string]string {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	var body struct {
		Pools []struct {
			Name, Phase string
			Jobs        int
		}
	}
	if json.NewDecoder(response.Body).Decode(&body) != nil {
		return nil
	}
	states := map[string]string{}
	for _, p := range body.Pools {
		states[p.Name] = fmt.Sprint(p.Jobs, " jobs")
		if p.Phase == "draining" {
			states[p.Name] += ", draining"
		}
	}
	return states
}

func TestReloadThousandEdits(t *testing.T) {
	t.Parallel()
	const edits, block, calm = 1000, 50, time.Second
	began := time.Now()
	w := newWorld(t, "docker")
	v, pools, port := w.countPolls(), w.pools(poolCount), freePort(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Log("the seed is", seed)
	content := func(f edition) string { return f.text(w, pools, port) }
	for i, spoil := range spoilers {
		if c, _ := asAgent(schema.Source{Path: w.file(), Content: []byte(spoil(content(fullEdition())))}); c != nil {
			t.Fatalf("the configuration that spoiler %d changed was accepted, want it refused", i)
		}
	}
	engine, host := engineProxy(t)
	socket := filepath.Join(t.TempDir(), "profile.sock")
	agent := w.followBy(profiled(t), []string{"DOCKER_HOST=" + host, "CMWA_TEST_PROFILE=" + socket},
		content(fullEdition()))

	var contained, free, others []string
	for i, p := range pools {
		for j := range heldOfEach {
			stack := fmt.Sprintf("held-%d-%d", i, j)
			if i >= dockerPools {
				w.queueHeld(stack, p.id)
				free = append(free, stack)
				continue
			}
			w.queue(stack, order{
				Steps: []step{
					{Name: "wait", Run: "mkfifo /tmp/pipe; echo running; read line < /tmp/pipe; echo finished"},
				},
				Request: map[string]any{"agentPoolID": p.id},
			})
			contained = append(contained, stack)
		}
	}
	held := slices.Concat(contained, free)
	for _, stack := range held {
		w.waitStarted(stack)
	}

	t.Logf("%d jobs run after %s", len(held), time.Since(began).Round(time.Second))

	writers := w.writers()
	names := slices.Sorted(maps.Keys(writers))
	save := func(text string) { writers[names[random.IntN(len(names))]]([]byte(text)) }
	settled := func(f edition, what string) {
		t.Helper()
		polling, states := f.pollingTokens(pools), f.states()
		since := time.Now()
		var polled []string
		var shown map[string]string
		defer func() {
			if t.Failed() {
				t.Logf("%s\nthe file in force must be\n%s\nthe pools are %v, want %v\nthose that poll are %v, want %v",
					what, content(f), shown, states, polled, polling)
			}
		}()
		w.eventually(what, func() bool {
			polled, shown = v.within(calm), statesOf(port)
			return time.Since(since) > calm && slices.Equal(polled, polling) && maps.Equal(shown, states)
		})
	}
	refused := func() int { return strings.Count(agent.output(), "configuration rejected") }
	changed := func() int { return strings.Count(agent.output(), "configuration reloaded") }

	settled(fullEdition(), "the first configuration is in force")
	var start footprint
	last := content(fullEdition())
	for edit := 1; edit <= edits; edit++ {
		switch chance := random.IntN(20); {
		case chance < 7:
			save(spoilers[random.IntN(len(spoilers))](content(randomEdition(random))))
		case chance == 7:
			save("") // an incomplete write
		case chance == 8:
			save(last)
		default:
			last = content(randomEdition(random))
			save(last)
		}
		switch random.IntN(16) {
		case 0, 1: // wait about as long as the agent needs to detect the edit
			agent.ends(time.Duration(30+random.IntN(90)) * time.Millisecond)
		case 2, 3: // wait until the agent has applied or rejected the edit, at most 300 ms
			for seen, limit := refused()+changed(), time.Now().Add(300*time.Millisecond); refused()+
				changed() == seen && time.Now().Before(limit); {
				agent.ends(lookEvery)
			}
		}
		if edit%(block/2) == 0 {
			stack, p := fmt.Sprint("short-", edit), random.IntN(poolCount)
			w.queueShort(stack, pools[p].id)
			others = append(others, stack)
		}
		if edit%block != 0 {
			continue
		}
		f := randomEdition(random)
		if edit == 2*block || edit == edits {
			f = fullEdition()
		}
		last = content(f)
		save(last)
		settled(f, fmt.Sprintf("edit %d is in force", edit))
		if random.IntN(3) == 0 {
			before := refused()
			save(spoilers[random.IntN(len(spoilers))](last))
			w.eventually("a bad edit is refused", func() bool { return refused() > before })
			settled(f, fmt.Sprintf("edit %d is still in force after a bad one", edit))
		}
		if edit == 2*block {
			start = agent.footprint(socket, engine, v.server)
		}
	}
	took := time.Since(began).Round(time.Second)
	end := agent.holdsNoMore(start, socket, engine, v.server)
	t.Logf("all edits are made after %s; after %d edits: %s; after %d edits: %s", took, 2*block, start, edits, end)

	for _, stack := range others {
		w.await(stack, "succeeded")
	}
	for _, stack := range held {
		if status, _ := w.status(stack); status != "running" {
			t.Errorf("%s is %s after all edits, want running", stack, status)
		}
	}
	for _, stack := range contained {
		w.engine("exec", w.containers(stack)[0], "sh", "-c", "echo go > /tmp/pipe")
		w.waitSucceeded(stack)
	}
	for _, stack := range free {
		w.release(stack)
	}
	w.eventually("all containers are removed", func() bool {
		return !slices.ContainsFunc(contained, func(stack string) bool { return len(w.containers(stack)) > 0 })
	})
	for _, stack := range slices.Concat(held, others) {
		if claims := v.claimed(w, stack); claims != 1 {
			t.Errorf("%s was claimed %d times, want once", stack, claims)
		}
	}
	output := agent.output()
	ended, failed := strings.Count(output, "job succeeded"), strings.Count(output, "job failed")
	if ended != len(held)+len(others) || failed > 0 {
		t.Errorf("the agent reports %d jobs that succeeded and %d that failed, want %d and 0", ended, failed,
			len(held)+len(others))
	}
	drained, revived := strings.Count(output, "(running jobs: "), strings.Count(output, "revive pool")
	t.Logf("of %d edits %d came into force and %d problems were refused; "+
		"pools with jobs were drained %d times and revived %d times",
		edits, changed(), refused(), drained, revived)
	if changed() < edits/20 || refused() < edits/40 || drained < edits/40 || revived < edits/40 {
		t.Errorf("too few edits were applied, refused, drained a pool or revived one: run the test again")
	}
}
