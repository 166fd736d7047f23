package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// soakVariable sets the duration of the timed part of TestSoak, such as 30m. Without it,
// TestSoak has no timed part, and runs fewer jobs.
const soakVariable = "CMWA_SOAK"

// whole reports whether make soak runs the tests. make soak runs each scenario of a crash
// with each deploy_target. The time of make test is limited, so it runs each scenario with
// only one target, and changes the target from one scenario to the next.
func whole() bool { return os.Getenv(soakVariable) != "" }

// inTurn reports whether scenario number i runs with a target. The scenario can run with
// each of targets.
func inTurn(i int, target string, targets []string) bool {
	return whole() || len(targets) > 0 && targets[i%len(targets)] == target
}

// Sizes and limits of the soak test.
const (
	soakJobs      = 100             // of make test
	soakAllJobs   = 500             // of make soak, before its timed part
	soakSlots     = 6               // jobs at a time of each agent, with edits 5 to 7
	soakQueue     = 20              // jobs that wait or run in the timed part
	soakShare     = 0.03            // share of the calls at which a fault begins
	soakStorms    = 600             // calls between two storms, on average
	soakLimit     = 5 * time.Minute // for a fixed number of jobs
	outcomeLimit  = time.Minute     // for the outcome of each job after the last kill
	leftoverLimit = time.Minute     // for the removal of everything after the last outcome
)

// TestSoak runs short jobs on three agents, two of which share one Docker engine. Meanwhile
// it kills the agents with SIGKILL and edits their files. A proxy changes the responses of the
// service and breaks its connections, and the connections to the engine are reset. Each job
// must succeed, must not run twice, and must leave nothing behind. The first agent has the race
// detector, whose start takes much processor time. The test logs the seed of the faults and
// kills.
func TestSoak(t *testing.T) {
	t.Parallel()
	if text := os.Getenv(soakVariable); text != "" {
		limit, err := time.ParseDuration(text)
		if err != nil || limit <= 0 {
			t.Fatalf("%s=%q is not a duration such as 30m", soakVariable, text)
		}
		t.Run("many jobs", func(t *testing.T) { newSoak(t).runJobs(soakAllJobs) })
		t.Run("a long time", func(t *testing.T) { newSoak(t).runFor(limit) })
		return
	}
	newSoak(t).runJobs(soakJobs)
}

// soak is one run of the soak test.
type soak struct {
	*world
	proxy   *runtimetest.Proxy
	link    *runtimetest.Link
	seed    uint64
	witness string // directory with one file per job
	agents  []*soakAgent
	stacks  []string
	ended   map[string]string // final statuses, by stack
	started time.Time

	edits, kills, resets atomic.Int64
	usageBefore          []usage
}

// soakAgent is an agent that the test repeatedly kills and starts again.
type soakAgent struct {
	*program // the present process
	agentPort

	name   string
	config string
	target string
	bin    string // directory of its program
	random *rand.Rand
}

// newSoak starts the service, the proxy, the link to the engine and the agents.
func newSoak(t *testing.T) *soak {
	t.Helper()
	w := newWorld(t, "docker")
	seed := runtimetest.FaultSeed(t)
	s := &soak{
		world: w, seed: seed, witness: filepath.Join(w.directory, "witness"),
		started: time.Now(), ended: map[string]string{},
		link: runtimetest.NewLink(t, engineSocket()),
		proxy: runtimetest.NewProxy(t, runtimetest.ProxyOptions{
			Target: w.url, Host: gateway(t), Seed: seed, Share: soakShare, Storms: soakStorms,
		}),
	}
	w.must(os.Mkdir(s.witness, 0o777))
	w.must(os.Chmod(s.witness, 0o777))
	static, err := staticPrograms()
	w.must(err)
	for i, target := range []string{"docker", "docker", "process"} {
		bin := static
		if i == 0 {
			bin = w.bin
		}
		name := fmt.Sprint("soak-", i)
		a := &soakAgent{
			agentPort: agentPort(freePort(t)), name: name, config: filepath.Join(w.directory, name+".yaml"),
			target: target, bin: bin, random: rand.New(rand.NewPCG(seed, uint64(i))),
		}
		s.agents = append(s.agents, a)
		s.edit(a)
		s.startAgent(a)
		t.Cleanup(func() { s.endAgent(a) })
	}
	for _, a := range s.agents {
		s.eventually(a.name+" is ready", func() bool { return a.readyz() == http.StatusOK })
	}
	s.usageBefore = s.usage()
	return s
}

// engineSocket returns the path of the Docker engine's socket.
func engineSocket() string {
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		return path
	}
	return "/var/run/docker.sock"
}

// edit replaces the configuration of an agent by one with random limits and intervals.
func (s *soak) edit(a *soakAgent) {
	settings := []string{
		"token: " + s.pool, "working_directory: " + s.bin, "service_url: " + s.proxy.URL(),
		"deploy_target: " + a.target, a.setting(),
		fmt.Sprint("max_concurrent_workflows: ", soakSlots-1+a.random.IntN(3)),
		fmt.Sprintf("polling_interval: %dms", 200+a.random.IntN(300)),
		"request_retry_max_wait: 1s", "circuit_breaker_timeout: 1s",
		fmt.Sprintf("docker: {network: host, volumes: ['%s:/witness'], labels: ['soak=%d']}", s.witness, s.seed),
	}
	s.replace(a.config, s.settings(settings))
}

// startAgent starts an agent's process. All processes of an agent write to the same log.
func (s *soak) startAgent(a *soakAgent) {
	log, err := os.OpenFile(filepath.Join(s.directory, a.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Errorf("open the log of %s: %v", a.name, err)
		return
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(a.bin, "cmwa"), "run", "--config", a.config)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.directory, log, log
	p, err := s.tryLaunch(cmd, append(s.ownState(a.name), "DOCKER_HOST=tcp://"+s.link.Address()), log.Name())
	if err != nil {
		s.t.Errorf("start %s: %v", a.name, err)
		return
	}
	a.program = p
}

// endAgent ends an agent with SIGTERM. It checks that the agent ends and has logged no data
// race.
func (s *soak) endAgent(a *soakAgent) {
	a.signal(syscall.SIGTERM)
	if !a.ends(time.Minute) {
		s.t.Errorf("%s did not end within a minute of TERM", a.name)
		s.kill(a.program)
	}
	a.wantPrinted(0, "DATA RACE")
}

// runJobs queues jobs and disturbs the agents until every job has ended.
func (s *soak) runJobs(count int) {
	s.add(count)
	stop := s.disturb(func(random *rand.Rand) time.Duration {
		return between(random, 300*time.Millisecond, 3*time.Second)
	})
	s.until(soakLimit, time.Second, func() bool { return s.unfinished() == 0 })
	stop()
	s.judge()
}

// runFor keeps jobs in the queue and disturbs the agents for a time.
func (s *soak) runFor(duration time.Duration) {
	stop := s.disturb(func(random *rand.Rand) time.Duration {
		if random.IntN(4) == 0 {
			return between(random, 5*time.Second, 30*time.Second)
		}
		return between(random, 300*time.Millisecond, 3*time.Second)
	})
	reported := time.Now()
	s.until(duration, time.Second, func() bool {
		s.add(soakQueue - s.unfinished())
		if time.Since(reported) > time.Minute {
			reported = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %d jobs, %d kills, %d edits\n", time.Since(s.started).Round(time.Second),
				len(s.stacks), s.kills.Load(), s.edits.Load())
		}
		return false
	})
	stop()
	s.judge()
}

// until checks a condition at an interval until the condition holds or the limit has passed.
func (s *soak) until(limit, interval time.Duration, condition func() bool) {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	for !condition() && runtime.Sleep(ctx, nil, interval) {
	}
}

// add queues jobs of 0.05 to 3 seconds.
func (s *soak) add(count int) {
	for range count {
		i := len(s.stacks)
		stack := fmt.Sprint("job-", i)
		random := rand.New(rand.NewPCG(s.seed, uint64(1000+i)))
		length := between(random, 50*time.Millisecond, 3*time.Second)
		directory := "d=/witness; [ -d $d ] || d=" + s.witness + "; "
		s.queue(stack, order{Steps: []step{
			{Name: "first", Run: directory + "echo ran >> $d/" + stack + "; chmod 666 $d/" + stack},
			{Name: "second", Run: fmt.Sprintf("%ssleep %.2f; echo ended >> $d/%s", directory, length.Seconds(), stack)},
		}})
		s.stacks = append(s.stacks, stack)
	}
}

// between returns a random duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// unfinished returns the number of jobs without an outcome. Jobs start in the order of the
// queue. So unfinished requests statuses in this order, and only until it has counted
// soakQueue jobs without an outcome.
func (s *soak) unfinished() (count int) {
	for _, stack := range s.stacks {
		if s.ended[stack] != "" {
			continue
		}
		if count < soakQueue {
			if status, _ := s.status(stack); slices.Contains(finalStatuses, status) {
				s.ended[stack] = status
				continue
			}
		}
		count++
	}
	return count
}

// disturb kills agents at random intervals and starts them again at once, edits their files,
// and resets the connections to the engine. It does so until stop is called. When stop
// returns, all agents run and there are no more faults.
func (s *soak) disturb(interval func(*rand.Rand) time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, a := range s.agents {
		all.Go(func() {
			for runtime.Sleep(ctx, nil, interval(a.random)) {
				if a.random.IntN(4) == 0 {
					s.edit(a)
					s.edits.Add(1)
					continue
				}
				a.signal(syscall.SIGKILL)
				<-a.done
				s.kills.Add(1)
				s.startAgent(a)
			}
		})
	}
	all.Go(func() {
		random := rand.New(rand.NewPCG(s.seed, 99))
		for runtime.Sleep(ctx, nil, between(random, 3*time.Second, 15*time.Second)) {
			s.link.Reset()
			s.resets.Add(1)
		}
	})
	stop = func() {
		cancel()
		all.Wait()
		s.proxy.StopFaults()
	}
	s.t.Cleanup(stop) // before endAgent, if a failure ends the test earlier
	return stop
}

// usage contains the resources that a process uses.
type usage struct {
	name                    string
	memory                  int // resident, in kB
	descriptors, goroutines int // goroutines is 0 if unknown
}

// usage returns the usage of the service and the agents.
func (s *soak) usage() []usage {
	list := []usage{processUsage("cmwa-cloud", s.service.cmd.Process.Pid)}
	for _, a := range s.agents {
		u := processUsage(a.name, a.cmd.Process.Pid)
		u.goroutines = a.goroutines()
		list = append(list, u)
	}
	return list
}

// maxExtra is the number of descriptors or goroutines that a process without jobs may use in
// addition to those at the start, for idle connections and polls.
const maxExtra = 10

// exceeds reports whether a process uses more than at the start.
func (u usage) exceeds(before usage) bool {
	return u.descriptors > before.descriptors+maxExtra || u.goroutines > before.goroutines+maxExtra
}

// usageAtEnd returns the usage when no process exceeds that at the start any more, or after ten
// seconds: connections of the last jobs end later than the jobs. It first closes the idle
// connections of the proxy, which belong to the test.
func (s *soak) usageAtEnd() []usage {
	s.proxy.CloseIdleConnections()
	for end := time.Now().Add(10 * time.Second); ; <-time.After(100 * time.Millisecond) {
		after, exceeds := s.usage(), false
		for i, u := range after {
			exceeds = exceeds || u.exceeds(s.usageBefore[i])
		}
		if !exceeds || time.Now().After(end) {
			return after
		}
	}
}

// processUsage reads the usage of a process from /proc.
func processUsage(name string, pid int) usage {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return usage{name: name, memory: memoryOf(pid, "VmRSS"), descriptors: len(entries)}
}

// goroutines returns the number of the agent's goroutines, as its metrics report it.
func (a *soakAgent) goroutines() int {
	for line := range strings.Lines(string(bodyOf(a.url("/metrics")))) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			count, _ := strconv.Atoi(strings.TrimSpace(value))
			return count
		}
	}
	return 0
}

// judge checks the outcome of each job, checks that nothing is left of the jobs, and logs a
// table.
func (s *soak) judge() {
	t := s.t

	// Wait for the outcomes, and then for the removal of everything.
	ended := time.Now()
	s.until(outcomeLimit, 100*time.Millisecond, func() bool { return s.unfinished() == 0 })
	waited := time.Since(ended)
	s.until(leftoverLimit, 100*time.Millisecond, func() bool { return len(s.leftovers()) == 0 })

	// Check each job.
	succeeded, failed, lost, twice := 0, 0, 0, 0
	for _, stack := range s.stacks {
		status := s.ended[stack]
		text, _ := os.ReadFile(filepath.Join(s.witness, stack))
		runs := strings.Count(string(text), "ran\n")
		if runs > 1 {
			twice++
			t.Errorf("%s ran %d times:\n%s", stack, runs, s.log(stack))
		}
		switch {
		case status == "succeeded" && string(text) == "ran\nended\n":
			succeeded++
		case status == "failed":
			failed++
			t.Errorf("%s failed; its witness file contains %q, its log:\n%s", stack, text, s.log(stack))
		default:
			lost++
			t.Errorf("%s has the status %q; its witness file contains %q, its log:\n%s", stack, status, text,
				s.log(stack))
		}
	}
	left := s.leftovers()
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}

	// Log the table.
	faults := 0
	for _, count := range s.proxy.Injected() {
		faults += count
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "jobs\tsucceeded\tfailed\tlost\ttwice\tleft\tkills\tedits\tfaults\tresets\t"+
		"time\tlast outcome after")
	fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n",
		len(s.stacks), succeeded, failed, lost, twice, len(left),
		s.kills.Load(), s.edits.Load(), faults, s.resets.Load(),
		time.Since(s.started).Round(time.Second), waited.Round(100*time.Millisecond))
	fmt.Fprintf(table, "\nprocess\tMB at start\tat end\tdescriptors at start\tat end\tgoroutines at start\tat end\n")
	after := s.usageAtEnd()
	for i, before := range s.usageBefore {
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%d\t%d\t%d\t%d\n", before.name,
			float64(before.memory)/1000, float64(after[i].memory)/1000,
			before.descriptors, after[i].descriptors, before.goroutines, after[i].goroutines)
		if after[i].exceeds(before) {
			t.Errorf("%s has %d open descriptors and %d goroutines, and had %d and %d at the start", before.name,
				after[i].descriptors, after[i].goroutines, before.descriptors, before.goroutines)
		}
	}
	_ = table.Flush()
	t.Logf("seed %d\n%s", s.seed, b.String())
	if t.Failed() {
		t.Logf("CMWA_FAULT_SEED=%d repeats the faults; the logs of the agents:\n%s", s.seed, s.logs())
	}
}

// files returns the files in the directory of the test that match a pattern.
func (s *soak) files(pattern string) []string {
	paths, err := filepath.Glob(filepath.Join(s.directory, pattern))
	s.must(err)
	return paths
}

// leftovers returns the containers, directories, files, records and processes that jobs have
// left behind.
func (s *soak) leftovers() (left []string) {
	label := fmt.Sprint("label=soak=", s.seed)
	if ids := s.world.engine("ps", "--all", "--quiet", "--filter", label); ids != "" {
		left = append(left, "containers: "+ids)
	}
	for _, pattern := range []string{"cmwa-process-*/*", "workflow-runner-*"} {
		left = append(left, s.files(pattern)...)
	}
	left = append(left, s.files("state/cmwa/*/*/records/*.json*")...)
	for _, line := range s.processes() {
		if strings.Contains(line, "workflow-runner") {
			left = append(left, "process: "+line)
		}
	}
	return left
}
