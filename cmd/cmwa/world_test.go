package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/servertest"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// Times of the whole-program tests.
const (
	storyLimit = 2 * time.Minute       // far longer than any step takes, so that only a fault exceeds it
	lookEvery  = 20 * time.Millisecond // between the first two checks of a condition
	lookSlow   = 10 * lookEvery        // between later checks: most make a request or read a whole log
)

// skipUnlessCI skips a test that needs something which is missing. If CI=true, the test
// fails instead.
func skipUnlessCI(t testing.TB, missing string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}

// programs returns a directory with the real programs. They are built once per test run: cmwa with
// the race detector, except for benchmarks.
var programs = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "cmwa-programs-")
	if err != nil {
		return "", err
	}
	temporary.add(directory)
	static := []string{"CGO_ENABLED=0"}
	return directory, errors.Join(
		build([]string{"CGO_ENABLED=1"}, // which the race detector needs
			append(raceFlags(), "-o", filepath.Join(directory, "cmwa"), module+"cmd/cmwa")...),
		// The service is built without the race detector, with which it would use most of the
		// time of the tests. The service's own tests run with the race detector.
		build(static, "-trimpath", "-o", filepath.Join(directory, "cmwa-cloud"), module+"cmd/cmwa-cloud"),
		build(static, "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(directory, "workflow-runner"),
			module+"cmd/workflow-runner"),
		build(append(static, "GOOS=linux", "GOARCH="+goruntime.GOARCH), "-trimpath", "-ldflags", "-s -w", "-o",
			filepath.Join(directory, "workflow-runner-linux-"+goruntime.GOARCH), module+"cmd/workflow-runner"),
	)
})

// staticPrograms returns a directory with the programs, in which cmwa has the kill points. It is linked
// statically, for containers without libraries, and therefore has no race detector. Tests with many
// agents use it too, because such an agent starts with a fifth of the processor time. Without their
// variable, the kill points do nothing. TestRunCrash kills agents that have the race detector.
var staticPrograms = sync.OnceValues(func() (string, error) {
	bin, err := programs()
	if err != nil {
		return "", err
	}
	directory, err := os.MkdirTemp("", "cmwa-killpoints-")
	if err != nil {
		return "", err
	}
	temporary.add(directory)
	for _, name := range []string{"cmwa-cloud", "workflow-runner", "workflow-runner-linux-" + goruntime.GOARCH} {
		if err := os.Link(filepath.Join(bin, name), filepath.Join(directory, name)); err != nil {
			return "", err
		}
	}
	return directory, errors.Join(
		os.Chmod(directory, 0o755), // for the users of containers
		build([]string{"CGO_ENABLED=0"}, "-trimpath", "-ldflags=-s -w", "-tags=killpoints",
			"-o", filepath.Join(directory, "cmwa"), module+"cmd/cmwa"),
	)
})

// raceFlags returns the flags of go build that build the race detector in. A benchmark measures
// programs without it.
func raceFlags() []string {
	if flag.Lookup("test.bench").Value.String() != "" {
		return nil
	}
	return []string{"-race", "-ldflags=-s -w"}
}

// build runs go build with additional variables.
func build(environ []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false"}, args...)...)
	cmd.Env = append(os.Environ(), environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// temporary holds the directories that all tests of a run share.
var temporary directories

// directories is a list of directories. It is safe for concurrent use.
type directories struct {
	mu    sync.Mutex
	paths []string
}

func (f *directories) add(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths = append(f.paths, path)
}

func (f *directories) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, path := range f.paths {
		_ = os.RemoveAll(path)
	}
}

// world is one local service with its agents and jobs, run by the real programs. Each
// test creates its own.
type world struct {
	t         testing.TB
	directory string
	data      string // data directory of the service
	bin       string
	url       string
	user      string // access token
	pool      string // pool token
	poolID    string
	target    string

	cluster *kubetest.Namespace // for deploy_target kubernetes; else nil
	service *program
	docker  string // DOCKER_HOST of an engine of the test; if empty, the shared engine is used

	mu  sync.Mutex
	ids map[string]string // deployment ids by stack
}

// newWorld starts a service with one pool. For the targets docker and kubernetes, this
// machine and the containers or Pods reach the service by the same URL. For the target
// process, the service is on the loopback interface.
func newWorld(t testing.TB, target string, serve ...string) *world {
	t.Helper()
	bin, err := programs()
	noError(t, err)
	w := &world{t: t, directory: t.TempDir(), bin: bin, target: target, ids: map[string]string{}}
	address := "127.0.0.1"
	switch target {
	case "docker":
		address = gateway(t)
	case "kubernetes":
		w.cluster = kubetest.New(t)
		address = w.cluster.HostAddress(t)
	}
	w.data = servertest.DataDirectory(t)
	w.service = w.start("service", nil, "cmwa-cloud", append([]string{
		"serve", "--listen", address + ":0", "--data", w.data,
	}, serve...)...)
	w.url = w.service.waitForMatch(regexp.MustCompile(`http://[0-9.]+:[0-9]+`))
	token, err := os.ReadFile(filepath.Join(w.data, "access-token"))
	w.must(err)
	w.user = strings.TrimSpace(string(token))
	pool := w.createPool("tests")
	w.pool, w.poolID = pool.token, pool.id
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	noError(w.t, err)
}

// servicePool is a pool at the service.
type servicePool struct{ id, token string }

// createPool creates a pool at the service.
func (w *world) createPool(name string) servicePool {
	w.t.Helper()
	var answer struct{ ID, TokenValue string }
	w.call(http.MethodPost, "/api/orgs/organization/agent-pools", map[string]string{"name": name}, &answer)
	return servicePool{answer.ID, answer.TokenValue}
}

// pools creates further pools at the service.
func (w *world) pools(count int) []servicePool {
	w.t.Helper()
	made := make([]servicePool, count)
	for i := range made {
		made[i] = w.createPool(fmt.Sprint("pool-", i))
	}
	return made
}

// gateway returns the address at which containers of the default network reach this
// machine.
func gateway(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("../../testdata/toolchain/address").CombinedOutput()
	if address := strings.TrimSpace(string(out)); err == nil && net.ParseIP(address) != nil {
		return address
	}
	t.Fatalf("no Docker engine can be used (run testdata/toolchain/up): %v: %s", err, out)
	return ""
}

// call sends a request to the service with the user's access token. The test fails unless
// the status of the response is 2xx.
func (w *world) call(method, path string, body, answer any) {
	w.t.Helper()
	if code, text := w.ask(method, path, body, answer); code/100 != 2 {
		w.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
}

func (w *world) ask(method, path string, body, answer any) (int, string) {
	w.t.Helper()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		w.must(err)
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, w.url+path, content)
	w.must(err)
	request.Header.Set("Authorization", "token "+w.user)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	w.must(err)
	if answer != nil && response.StatusCode/100 == 2 {
		if err := json.Unmarshal(text, answer); err != nil {
			w.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return response.StatusCode, string(text)
}

// step is one step of a job that a test queues.
type step struct {
	Name    string `json:"name"`
	Run     string `json:"run"`
	Timeout string `json:"timeout,omitempty"`
}

// order describes a deployment that a test queues.
type order struct {
	Image   string
	Steps   []step
	Env     map[string]any
	Timeout string
	Login   map[string]any // credentials of the image
	Pool    string         // id; empty for the world's pool
	Request map[string]any // further fields of the request
}

// oneStep returns a job with one step.
func oneStep(run string) order { return order{Steps: []step{{Name: "a", Run: run}}} }

// in returns the same job for a pool.
func (o order) in(poolID string) order {
	o.Pool = poolID
	return o
}

const baseImage = "cmwa-test/base:latest"

// queue queues a job with these steps for the stack.
func (w *world) queue(stack string, o order) {
	w.t.Helper()
	image := map[string]any{"reference": cmp.Or(o.Image, baseImage)}
	if o.Login != nil {
		image["credentials"] = o.Login
	}
	request := map[string]any{
		"inheritSettings": false, "agentPoolID": cmp.Or(o.Pool, w.poolID),
		"executorContext":  map[string]any{"executorImage": image},
		"operationContext": map[string]any{"environmentVariables": o.Env, "options": map[string]any{"shell": "sh"}},
	}
	if o.Steps != nil {
		request["cmwaSteps"] = o.Steps
	}
	if o.Timeout != "" {
		request["cmwaTimeout"] = o.Timeout
	}
	maps.Copy(request, o.Request)
	if code, text := w.ask(http.MethodPost, "/api/stacks/organization/tests", map[string]string{"stackName": stack},
		nil); code/100 != 2 && code != http.StatusConflict {
		w.t.Fatalf("create stack %s: %d %s", stack, code, text)
	}
	var answer struct{ ID string }
	w.call(http.MethodPost, "/api/stacks/organization/tests/"+stack+"/deployments", request, &answer)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids[stack] = answer.ID
}

// id returns the id of a stack's deployment.
func (w *world) id(stack string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[stack]
}

func (w *world) path(stack string) string {
	return "/api/stacks/organization/tests/" + stack + "/deployments/" + w.id(stack)
}

// status returns the status of a deployment, and the statuses of its steps.
func (w *world) status(stack string) (status string, steps []string) {
	w.t.Helper()
	var answer struct {
		Status string
		Jobs   []struct{ Steps []struct{ Status string } }
	}
	w.call(http.MethodGet, w.path(stack), nil, &answer)
	for _, job := range answer.Jobs {
		for _, step := range job.Steps {
			steps = append(steps, step.Status)
		}
	}
	return answer.Status, steps
}

// finalStatuses are the statuses of a deployment that has ended.
var finalStatuses = []string{"succeeded", "failed", "skipped"}

// await blocks until a deployment has one of the states, and returns the state.
func (w *world) await(stack string, states ...string) string {
	w.t.Helper()
	var last string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s is %s; its log:\n%s", stack, last, w.log(stack))
		}
	}()
	w.eventually(fmt.Sprintf("%s is %v", stack, states), func() bool {
		last, _ = w.status(stack)
		return slices.Contains(states, last)
	})
	return last
}

// wantSteps checks the states of the steps, step 0 first.
func (w *world) wantSteps(stack string, want ...string) {
	w.t.Helper()
	if _, got := w.status(stack); strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Errorf("the steps of %s are %v, want %v; the log:\n%s", stack, got, want, w.log(stack))
	}
}

// wantStatus checks the status of a deployment.
func (w *world) wantStatus(stack, want string) {
	w.t.Helper()
	if status, _ := w.status(stack); status != want {
		w.t.Errorf("the job of %s is %s, want %s:\n%s", stack, status, want, w.log(stack))
	}
}

// wantLog checks that the log of a deployment contains these texts.
func (w *world) wantLog(stack string, texts ...string) {
	w.t.Helper()
	log := w.log(stack)
	for _, text := range texts {
		if !strings.Contains(log, text) {
			w.t.Errorf("the log of %s lacks %q:\n%s", stack, text, log)
		}
	}
}

// log returns the whole log of a deployment, as a client reads it.
func (w *world) log(stack string) string {
	w.t.Helper()
	var b strings.Builder
	token := ""
	for {
		var page struct {
			Lines     []struct{ Header, Line string }
			NextToken string
		}
		path := w.path(stack) + "/logs"
		if token != "" {
			path += "?continuationToken=" + token
		}
		w.call(http.MethodGet, path, nil, &page)
		for _, line := range page.Lines {
			b.WriteString(line.Line)
		}
		if page.NextToken == "" || page.NextToken == token {
			return b.String()
		}
		token = page.NextToken
	}
}

// eventually polls until a condition holds. The test fails if it does not hold within
// storyLimit.
func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	limit, longest := time.After(storyLimit), lookSlow
	if _, measures := w.t.(*testing.B); measures {
		longest = lookEvery
	}
	for delay := lookEvery; !condition(); delay = min(2*delay, longest) {
		select {
		case <-limit:
			w.t.Fatalf("not true within %s: %s\n%s", storyLimit, what, w.logs())
		case <-time.After(delay):
		}
	}
}

// agent starts an agent with these settings, in addition to those that all tests have.
func (w *world) agent(settings ...string) *program {
	w.t.Helper()
	return w.agentWith(nil, settings...)
}

func (w *world) agentWith(env []string, settings ...string) *program {
	w.t.Helper()
	config, env := w.configure(env, settings...)
	return w.start("agent", env, "cmwa", "run", "--config", config)
}

// configure writes the configuration of an agent with these settings, in addition to those that
// all tests have. It returns the path of the file and the agent's variables.
func (w *world) configure(env []string, settings ...string) (string, []string) {
	w.t.Helper()
	config := filepath.Join(w.directory, "agent.yaml")
	more := []string{"token: " + w.pool, "working_directory: " + w.bin, "http_server_port: 0"}
	if w.cluster != nil {
		more = append(more, w.clusterSettings()...)
		env = append(env, "KUBECONFIG="+w.cluster.Kubeconfig(w.t))
	}
	if w.docker != "" {
		env = append(env, "DOCKER_HOST="+w.docker)
	}
	w.must(os.WriteFile(config, []byte(w.settings(settings, more...)), 0o600))
	return config, env
}

// settings returns a configuration with these lines. It adds the lines of more, and the
// lines that all agents of the tests have in common, unless their keys are set already.
func (w *world) settings(lines []string, more ...string) string {
	return withDefaults(lines, append(more,
		"service_url: "+w.url, "deploy_target: "+w.target, "pull_image: false", "polling_interval: 200ms",
		"job_status_loop_interval: 500ms", "request_retry_wait: 200ms", "log_level: debug", hostNetwork)...)
}

// withDefaults returns a configuration with these lines, and with the defaults whose keys are not
// set already.
func withDefaults(lines []string, defaults ...string) string {
	lines = slices.Clone(lines)
	for _, line := range defaults {
		key, _, _ := strings.Cut(line, ":")
		if !slices.ContainsFunc(lines, func(other string) bool { return strings.HasPrefix(other, key+":") }) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// hostNetwork is a setting that more than halves the time which an engine needs to start a
// container. Tests that set docker themselves use the engine's default network.
const hostNetwork = "docker: {network: host}"

// clusterSettings returns the settings for the test cluster, which cannot pull images.
func (w *world) clusterSettings() []string {
	return []string{
		"kubernetes: {image: " + kubetest.RunnerImage(w.t) + ", image_pull_policy: Never}",
		"pod_template: {spec: {containers: [{name: pulumi-workflow, imagePullPolicy: Never}]}}",
	}
}

// program is a running program.
type program struct {
	w    *world
	cmd  *exec.Cmd
	path string // of the file with its output
	done chan struct{}
	code int
}

// environ returns the variables that keep the home directory, the temporary files and the
// state of a program inside the test's directory.
func (w *world) environ() []string {
	return []string{"HOME=" + w.directory, "TMPDIR=" + w.directory, "STATE_DIRECTORY=", "XDG_STATE_HOME=" +
		filepath.Join(w.directory, "state")}
}

// ownState returns the variable that gives an agent its own state directory, for a test with
// several agents.
func (w *world) ownState(name string) []string {
	return []string{"PULUMI_AGENT_STATE_DIRECTORY=" + filepath.Join(w.directory, "state", name)}
}

// start starts one of the programs. At the test's end the program is stopped, and its
// output is logged if the test has failed.
func (w *world) start(name string, env []string, command string, args ...string) *program {
	w.t.Helper()
	return w.startIn(w.directory, name, env, command, args...)
}

// startIn is like start, and sets the working directory.
func (w *world) startIn(directory, name string, env []string, command string, args ...string) *program {
	w.t.Helper()
	output, err := os.CreateTemp(w.directory, name+"-*.log")
	w.must(err)
	if !filepath.IsAbs(command) {
		command = filepath.Join(w.bin, command)
	}
	cmd := exec.Command(command, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, output, output
	p := w.launch(cmd, env, output.Name())
	w.must(output.Close())
	w.t.Cleanup(func() {
		p.signal(syscall.SIGTERM)
		if !p.ends(20 * time.Second) {
			p.signal(syscall.SIGTERM) // makes an agent stop its jobs
			if !p.ends(time.Minute) {
				w.t.Errorf("%s did not end on TERM:\n%s", name, p.output())
				p.signal(syscall.SIGKILL)
				<-p.done
			}
		}
		if strings.Contains(p.output(), "DATA RACE") {
			w.t.Errorf("%s has a data race:\n%s", name, p.output())
		}
		if w.t.Failed() {
			w.t.Logf("-- output of %s:\n%s", name, p.output())
		}
	})
	return p
}

// launch starts a program with the variables of the world, and with those of env. The file at
// path has the output of the program.
func (w *world) launch(cmd *exec.Cmd, env []string, path string) *program {
	w.t.Helper()
	p, err := w.tryLaunch(cmd, env, path)
	w.must(err)
	return p
}

// tryLaunch is launch for goroutines other than that of the test, which must not end the test.
func (w *world) tryLaunch(cmd *exec.Cmd, env []string, path string) (*program, error) {
	p := &program{w: w, cmd: cmd, path: path, done: make(chan struct{})}
	cmd.Env = append(os.Environ(), append(w.environ(), env...)...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait()
		p.code = cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	return p, nil
}

func (p *program) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// ends reports whether the program has ended within the limit.
func (p *program) ends(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// exit blocks until the program has ended, and checks its exit code.
func (p *program) exit(want int) {
	p.w.t.Helper()
	if !p.ends(storyLimit) {
		p.w.t.Fatalf("the program does not end:\n%s", p.output())
	}
	if p.code != want {
		p.w.t.Errorf("the program ended with code %d, want %d:\n%s", p.code, want, p.output())
	}
}

func (p *program) output() string {
	text, err := os.ReadFile(p.path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// waitForMatch blocks until the output of the program has a match, and returns the match.
func (p *program) waitForMatch(what *regexp.Regexp) (found string) {
	p.w.t.Helper()
	p.w.eventually("the program prints "+what.String(), func() bool {
		found = what.FindString(p.output())
		if found == "" && p.ends(0) {
			p.w.t.Fatalf("the program ended without printing %s:\n%s", what, p.output())
		}
		return found != ""
	})
	return found
}

func (p *program) waitFor(text string) {
	p.w.t.Helper()
	p.waitForMatch(regexp.MustCompile(regexp.QuoteMeta(text)))
}

// wantPrinted checks how often each of these texts is in the output of the program.
func (p *program) wantPrinted(times int, texts ...string) {
	p.w.t.Helper()
	output, err := os.ReadFile(p.path)
	p.w.must(err)
	for _, text := range texts {
		if n := strings.Count(string(output), text); n != times {
			p.w.t.Errorf("the program has printed %q %d times, want %d:\n%s", text, n, times, output)
		}
	}
}

// mostJobs returns the largest number of jobs that an agent held at the same time. The lines of
// its log are in order, and it frees a slot only after it has logged the end of the job.
func (p *program) mostJobs() (most int) {
	held := 0
	for line := range strings.Lines(p.output()) {
		switch {
		case strings.Contains(line, "job claimed"):
			held++
		case strings.Contains(line, "job succeeded"):
			held--
		}
		most = max(most, held)
	}
	return most
}

// logs returns the output of every program, for the message of a failed test.
func (w *world) logs() string {
	files, _ := filepath.Glob(filepath.Join(w.directory, "*.log"))
	var b strings.Builder
	for _, file := range files {
		text, _ := os.ReadFile(file)
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(file), text)
	}
	return b.String()
}

// engine runs the docker command and returns its output.
func (w *world) engine(args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), storyLimit)
	defer cancel()
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "docker", args...)
	if w.docker != "" {
		cmd.Env = append(os.Environ(), "DOCKER_HOST="+w.docker)
	}
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// containers returns the ids of the containers of a stack's job, or the names of its Pods.
func (w *world) containers(stack string) []string {
	w.t.Helper()
	if w.cluster == nil {
		return strings.Fields(w.engine("ps", "--all", "--quiet", "--no-trunc", "--filter",
			"label=cmwa.subject="+w.id(stack)))
	}
	var names []string
	for _, pod := range w.workers(stack) {
		names = append(names, pod.Name)
	}
	return names
}

// container returns the only container or Pod of a stack's job.
func (w *world) container(stack string) string {
	w.t.Helper()
	all := w.containers(stack)
	if len(all) != 1 {
		w.t.Fatalf("the job of %s has the containers %v, want one", stack, all)
	}
	return all[0]
}

// lastPort is the last port that freePort has returned. It starts at a number that depends on the
// process, and stays below the ports that the kernel chooses.
var lastPort atomic.Int32

func init() { lastPort.Store(int32(12_000 + os.Getpid()%100*200)) }

// freePort returns a port of this machine on which no program listens. It returns each port once.
// The kernel gives no other program this port, as it could do with one that it chose itself.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		port := int(lastPort.Add(1))
		if listener, err := net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			_ = listener.Close()
			return port
		}
	}
}

// agentPort is the port of an agent's HTTP server, on this machine.
type agentPort int

// setting returns the line of a configuration that sets the port.
func (p agentPort) setting() string { return fmt.Sprintf("http_server_port: %d", p) }

func (p agentPort) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", p, path) }

// healthz and readyz return the status of the response, or 0 without one.
func (p agentPort) healthz() int { return probe(p.url("/healthz")) }
func (p agentPort) readyz() int  { return probe(p.url("/readyz")) }

// probe returns the HTTP status of the response to a GET request, or 0 if there is none.
func probe(url string) int {
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// bodyOf returns the body of the response to a GET request, or nil without one.
func bodyOf(url string) []byte {
	response, err := http.Get(url)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil
	}
	return body
}

// networkOf returns the network of an address: the path of a Unix socket, or host and port.
func networkOf(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}

// forward forwards connections from one address to another. The function end stops it, and
// closes the connections.
func forward(t testing.TB, from, to string) (end func()) {
	t.Helper()
	listener, err := net.Listen(networkOf(from), from)
	noError(t, err)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(networkOf(to), to)
			if err != nil {
				_ = in.Close()
				continue
			}
			context.AfterFunc(ctx, func() {
				_ = in.Close()
				_ = out.Close()
			})
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].(interface{ CloseWrite() error }).CloseWrite()
				})
			}
		}
	})
	return func() { _ = listener.Close(); cancel(); all.Wait() }
}

// serve starts an HTTP server, which ends with the test. Address is the one that it listens on.
func serve(t testing.TB, network, listen string, handler http.Handler) (server *http.Server, address string) {
	t.Helper()
	listener, err := net.Listen(network, listen)
	noError(t, err)
	server = &http.Server{Handler: handler}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return server, listener.Addr().String()
}
