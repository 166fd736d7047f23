package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// file returns the path of the configuration, which is alone in its directory.
func (w *world) file() string { return filepath.Join(w.directory, "config", "agent.yaml") }

// content returns a configuration with these lines. It adds the lines that all tests share,
// except those whose keys are set already.
func (w *world) content(lines ...string) string {
	return withDefaults(lines,
		"service_url: "+w.url, "deploy_target: "+w.target, "working_directory: "+w.bin, "pull_image: false",
		"polling_interval: 100ms", "job_status_loop_interval: 1s", "http_server_port: 0", "request_retry_wait: 200ms",
		hostNetwork)
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
	w.queue(stack, oneStep("echo running; read line < "+pipe+"; echo finished").in(poolID))
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
	w.await(stack, finalStatuses...)
	w.wantStatus(stack, "succeeded")
	log := w.log(stack)
	if started, finished := strings.Count(log, "\nrunning\n"), strings.Count(log, "\nfinished\n"); started != 1 ||
		finished != 1 {
		w.t.Errorf("%s has started %d times and finished %d times:\n%s", stack, started, finished, log)
	}
}

// queueShort queues a job that ends immediately.
func (w *world) queueShort(stack, poolID string) {
	w.t.Helper()
	w.queue(stack, oneStep("true").in(poolID))
}

// runShort is like queueShort, and blocks until the job has succeeded.
func (w *world) runShort(stack, poolID string) {
	w.t.Helper()
	w.queueShort(stack, poolID)
	w.await(stack, "succeeded")
}

// heldJob is a job in a container that runs until releaseHeld releases it.
var heldJob = oneStep("mkfifo /tmp/pipe; echo running; cat /tmp/pipe; echo finished")

// releaseHeld releases a heldJob, and blocks until it has succeeded.
func (w *world) releaseHeld(stack string) {
	w.t.Helper()
	// The job reads the pipe to its end, which comes when this shell exits: if the job went on as soon as it
	// read the line, the end of its container could kill the shell first.
	w.engine("exec", w.container(stack), "sh", "-c", "exec >/tmp/pipe; echo go")
	w.waitSucceeded(stack)
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
	agent.waitFor("converged")
}

func TestReloadSupersedesPreparedPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(3)
	socket := filepath.Join(t.TempDir(), "engine.sock") // of an engine that never responds
	asked := make(chan struct{}, 100)
	serve(t, "unix", socket, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
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

func TestReloadRenamedPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	agent := w.follow(nil, fmt.Sprintf("pools: [{name: old, token: %s}]", p[0].token))
	w.hold("held", p[0].id)
	w.save(fmt.Sprintf("pools: [{name: new, token: %s}]", p[0].token))
	agent.waitFor("start pool new")
	agent.waitFor("drain pool old (running jobs: 1)")
	w.runShort("next", p[0].id)
	w.release("held")
	agent.waitFor("remove pool old")
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=2`))
	v.wantClaimedOnce(w, "held", "next")
}

func TestReloadRevivesDrainingPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "docker")
	v, p := w.countPolls(), w.pools(2)
	other := fmt.Sprintf("{name: other, token: %s}", p[1].token)
	both := fmt.Sprintf("pools: [%s, {name: back, token: %s, max_concurrent_workflows: 2}]", other, p[0].token)
	agent := w.follow(nil, both)
	w.queue("first", heldJob.in(p[0].id))
	w.waitStarted("first")
	w.save("pools: [" + other + "]")
	agent.waitFor("drain pool back (running jobs: 1)")
	w.waitPoll(v, p[1].token) // meanwhile, a poll that was in progress gets its response
	w.wantNoPolls(v, p[0].token, p[1].token)
	w.save(both)
	agent.waitFor("revive pool back")
	w.queue("second", heldJob.in(p[0].id))
	w.waitStarted("second")
	var named []string
	for _, stack := range []string{"first", "second"} {
		named = append(named, w.engine("inspect", "--format",
			`{{index .Config.Labels "cmwa.agent"}} {{index .Config.Labels "cmwa.pool"}}`, w.container(stack)))
	}
	if named[0] != named[1] {
		t.Errorf("the agent and pool of the two jobs are %q and %q", named[0], named[1])
	}
	w.releaseHeld("first")
	w.releaseHeld("second")
	v.wantClaimedOnce(w, "first", "second")
	agent.wantPrinted(1, "start pool back")
}

func TestReloadLimitOfJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	v, p := w.countPolls(), w.pools(1)
	agent := w.follow(nil, "token: "+p[0].token, "max_concurrent_workflows: 1")
	w.hold("a", p[0].id)
	w.queueHeld("b", p[0].id)
	w.queueHeld("c", p[0].id)
	if claims := v.claimed(w, "b", "c"); claims > 0 {
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
	w.wantStatus("d", "not-started") // and not claimed beyond the lowered limit
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
	w.runShort("two", p[1].id)
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
	from, to := agentPort(freePort(t)), agentPort(freePort(t))
	agent := w.follow(nil, "token: "+p[0].token, from.setting())
	w.eventually("the first port answers", func() bool { return from.healthz() == http.StatusOK })
	w.save("token: "+p[0].token, to.setting())
	w.eventually("the new port answers", func() bool { return to.healthz() == http.StatusOK })
	w.eventually("the old port is closed", func() bool { return from.healthz() == 0 })

	listener, err := net.Listen("tcp", ":0")
	w.must(err)
	taken := agentPort(listener.Addr().(*net.TCPAddr).Port)
	w.save("token: "+p[0].token, taken.setting())
	agent.waitForMatch(regexp.MustCompile(`cannot change settings of the agent.*set http_server_port to a free port`))
	if got := to.healthz(); got != http.StatusOK {
		t.Errorf("while the new port is in use, the previous port answers %d, want 200", got)
	}
	w.waitPoll(v, p[0].token)
	w.must(listener.Close())
	w.eventually("the new port, which is free now, answers", func() bool { return taken.healthz() == http.StatusOK })
	w.eventually("the previous port is closed", func() bool { return to.healthz() == 0 })
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
	w.runShort("next", p[0].id)
	w.release("held")
	if count := len(place.FindAllString(agent.output(), -1)); count != 1 {
		t.Errorf("a bad edit was logged %d times, want once:\n%s", count, agent.output())
	}
	w.save(good...)
	agent.waitForMatch(regexp.MustCompile(`configuration file is valid again, no change.*generation=1`))
	w.waitPoll(v, p[0].token)
	agent.wantPrinted(0, "tune pool", "drain pool", "set the agent", "generation=2")
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
	home, here := filepath.Join(w.directory, "home", schema.FileName), filepath.Join(w.directory, schema.FileName)
	w.must(os.Mkdir(filepath.Dir(home), 0o700))
	w.replace(filepath.Join(w.directory, "token"), p[0].token)
	w.start("agent", []string{
		"HOME=" + filepath.Dir(home), "PULUMI_AGENT_SERVICE_URL=" + w.url, "PULUMI_AGENT_DEPLOY_TARGET=process",
		"PULUMI_AGENT_WORKING_DIRECTORY=" + w.bin, "PULUMI_AGENT_POLLING_INTERVAL=100ms",
		"PULUMI_AGENT_HTTP_SERVER_PORT=0", "PULUMI_AGENT_TOKEN_FILE=" + filepath.Join(w.directory, "token"),
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
	content := func(p servicePool) string { return w.content("working_directory: /run", "token: "+p.token) }
	file := fileOf(t, "agent.yaml", content(p[0]))
	container := w.engine("run", "--detach", "--volume", programs+"/cmwa:/run/cmwa:ro", "--volume", programs+
		"/workflow-runner:/run/workflow-runner:ro", "--volume", file+":/run/agent.yaml:ro",
		"--env", "TMPDIR=/", "--entrypoint", "/run/cmwa", baseImage, "run", "--config", "/run/agent.yaml")
	t.Cleanup(func() { w.engine("rm", "--force", container) })
	w.waitPoll(v, p[0].token)
	const warning = "mounted by itself"
	w.eventually("the log warns of the mount", func() bool { return strings.Contains(logsOf(container), warning) })
	output := logsOf(container)
	if n := strings.Count(output, warning); n != 1 || !strings.Contains(output, "file=/run/agent.yaml") {
		t.Errorf("the log warns %d times, want once:\n%s", n, output)
	}
	w.must(os.WriteFile(file, []byte(content(p[1])), 0o600)) // a write in place: the agent gets no event
	w.waitPoll(v, p[1].token)
}

func TestReloadEventOverflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	w.must(err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	w.must(err)
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
func (f edition) text(w *world, pools []servicePool, port agentPort) string {
	lines := append(slices.Clone(f.lines), fmt.Sprint("max_concurrent_workflows: ", f.most), port.setting())
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
func statesOf(port agentPort) map[string]string {
	var body struct {
		Pools []struct {
			Name, Phase string
			Jobs        int
		}
	}
	if json.Unmarshal(bodyOf(port.url("/healthz")), &body) != nil {
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
	v, pools, port := w.countPolls(), w.pools(poolCount), agentPort(freePort(t))
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
			w.queue(stack, heldJob.in(p.id))
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
		w.wantStatus(stack, "running")
	}
	for _, stack := range contained {
		w.releaseHeld(stack)
	}
	for _, stack := range free {
		w.release(stack)
	}
	w.eventually("all containers are removed", func() bool {
		return !slices.ContainsFunc(contained, func(stack string) bool { return len(w.containers(stack)) > 0 })
	})
	v.wantClaimedOnce(w, slices.Concat(held, others)...)
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
	// A problem is refused only if the file was renamed, or unchanged for a second: most are replaced earlier.
	if changed() < edits/20 || refused() < edits/200 || drained < edits/40 || revived < edits/40 {
		t.Errorf("too few edits were applied, refused, drained a pool or revived one")
	}
}
