package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// The size of the test of faults, and its limit of calls.
const (
	faultJobs    = 150 // in make test
	allFaultJobs = 300 // in make soak
	faultAgents  = 12
	faultSlots   = 2    // jobs that each agent runs at a time
	maxRate      = 20   // calls of one program within any one second
	faultShare   = 0.08 // share of the calls at which a fault begins
	faultStorms  = 400  // calls between two storms, on average
	faultLimit   = 5 * time.Minute
)

// TestFaults runs jobs while a proxy between agents, runners and service injects short
// faults. Half of the agents use HTTP/1, half use HTTP/2 over TLS. Each fault and each
// storm of faults is shorter than the time that the programs must tolerate, so each job
// must succeed exactly once.
//
// No program may make more than maxRate calls within any second. A program is an agent,
// with the calls for all of its jobs, or a runner. All calls count, also polls and retries.
// Without a fault an agent makes about seven calls per job, so many very short jobs would
// exceed the limit. Therefore each agent runs two jobs at a time, and each job takes at
// least a second.
//
// One agent behind each proxy has the race detector, with which an agent uses several times
// the processor time.
func TestFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	options := runtimetest.ProxyOptions{
		Target: w.url, Share: faultShare, Storms: faultStorms, Seed: runtimetest.FaultSeed(t),
	}
	proxies := []*runtimetest.Proxy{runtimetest.NewProxy(t, options)}
	options.TLS = true
	options.Seed++
	proxies = append(proxies, runtimetest.NewProxy(t, options))
	witness := filepath.Join(w.directory, "witness")
	w.must(os.Mkdir(witness, 0o700))
	jobs := faultJobs
	if whole() {
		jobs = allFaultJobs
	}
	var stacks []string
	for i := range jobs {
		stacks = append(stacks, fmt.Sprint("job-", i))
		w.queue(stacks[i], faultJob(i, filepath.Join(witness, stacks[i])))
	}
	started := time.Now()
	static, err := staticPrograms()
	w.must(err)
	var agents []*program
	for i := range faultAgents {
		bin := static
		if i < len(proxies) {
			bin = w.bin
		}
		agents = append(agents, w.behind(proxies[i%len(proxies)], i, bin))
	}
	t.Cleanup(func() { // stop all agents at once, and after a failure do not wait for their jobs
		for _, agent := range agents {
			agent.signal(syscall.SIGTERM)
			if t.Failed() {
				agent.signal(syscall.SIGTERM)
			}
		}
	})
	limit, wrong := time.Now().Add(faultLimit), 0
	for _, stack := range stacks {
		if status := w.ended(stack, limit); status != "succeeded" {
			t.Errorf("the job of %s is %s, want succeeded", stack, status)
			if wrong++; wrong <= 3 {
				t.Logf("the log of %s:\n%s", stack, w.log(stack))
			}
		}
	}
	t.Logf("%d jobs took %s", jobs, time.Since(started).Round(time.Second))
	for i, p := range proxies {
		p.StopFaults()
		w.judgeProxy(i, p)
	}
	if wrong == 0 {
		w.judgeJobs(proxies, agents, stacks, witness)
	}
}

// faultJob is a job of one to three seconds, so that the agent requests its status. Every
// third job writes its log all the time, so that the runner sends several batches.
func faultJob(i int, witness string) order {
	work := fmt.Sprintf("sleep %d.%d", 1+i%2, i%10)
	if i%3 == 0 {
		work = "n=0; while [ $n -lt 10 ]; do n=$((n+1)); echo line $n; sleep 0.2; done"
	}
	return order{Steps: []step{
		{Name: "first", Run: "echo ran >> " + witness + "; echo first done"},
		{Name: "second", Run: work + "; echo second done"},
	}}
}

// behind starts an agent with its own configuration file, from a directory with programs. The
// agent calls the service through a proxy.
func (w *world) behind(p *runtimetest.Proxy, number int, bin string) *program {
	w.t.Helper()
	name := fmt.Sprint("agent-", number)
	settings := []string{
		"token: " + w.pool, "service_url: " + p.URL(), "log_level: debug",
		fmt.Sprint("max_concurrent_workflows: ", faultSlots), "polling_interval: 500ms",
		"request_retry_max_wait: 1s", "circuit_breaker_timeout: 1s", // for polls only
	}
	if p.Authority() != "" {
		file := filepath.Join(w.directory, name+".pem")
		w.must(os.WriteFile(file, []byte(p.Authority()), 0o600))
		settings = append(settings, "ca_file: "+file)
	}
	file := filepath.Join(w.directory, name+".yaml")
	w.must(os.WriteFile(file, []byte(w.content(settings...)), 0o600))
	return w.start(name, w.ownState(name), filepath.Join(bin, "cmwa"), "run", "--config", file)
}

// ended blocks until a deployment has ended or the limit has passed, and returns the status
// of the deployment. It polls slowly, because the test shares the machine with the jobs.
func (w *world) ended(stack string, limit time.Time) (status string) {
	w.t.Helper()
	look := time.NewTicker(10 * lookEvery)
	defer look.Stop()
	for {
		status, _ = w.status(stack)
		if slices.Contains(finalStatuses, status) || time.Now().After(limit) {
			return status
		}
		<-look.C
	}
}

// judgeJobs checks that each job was claimed once, ran once and has its whole log, and
// that the agents report no failure.
func (w *world) judgeJobs(proxies []*runtimetest.Proxy, agents []*program, stacks []string, witness string) {
	w.t.Helper()
	t := w.t

	claims := map[string]int{}
	for _, p := range proxies {
		for id, count := range p.Claims() {
			claims[id] += count
		}
		for _, lost := range p.LostPolls() {
			t.Errorf("a job was lost with the response to its poll: %s", lost)
		}
	}
	for _, stack := range stacks {
		if n := claims[w.id(stack)]; n != 1 {
			t.Errorf("the job of %s was claimed %d times, want once", stack, n)
		}
		if text, err := os.ReadFile(filepath.Join(witness, stack)); string(text) != "ran\n" {
			t.Errorf("the file of %s is %q, %v, want one line: ran", stack, text, err)
		}
		log := w.log(stack)
		for _, line := range []string{"\nfirst done\n", "\nsecond done\n"} {
			if count := strings.Count(log, line); count != 1 {
				t.Errorf("the log of %s has the line %q %d times:\n%s", stack, line, count, log)
			}
		}
	}

	succeeded := 0
	for i, agent := range agents {
		w.eventually(fmt.Sprint("agent ", i, " has ended all its jobs"), func() bool {
			return strings.Count(agent.output(), "job claimed") == strings.Count(agent.output(), "job succeeded")
		})
		succeeded += strings.Count(agent.output(), "job succeeded")
		agent.wantPrinted(0, "job failed")
	}
	if succeeded != len(stacks) {
		t.Errorf("the agents log %d jobs that succeeded, want %d", succeeded, len(stacks))
	}
}

// judgeProxy checks that no program exceeded the limit of calls or reported a failure,
// and that the proxy injected enough faults.
func (w *world) judgeProxy(number int, p *runtimetest.Proxy) {
	w.t.Helper()
	for _, failed := range p.ReportedFailed() {
		w.t.Errorf("a step was reported as failed: %s", failed)
	}
	rates := p.Rates()
	for _, rate := range rates {
		if rate.Most > maxRate {
			w.t.Errorf("%s made %d calls within a second, want at most %d", rate.Program, rate.Most, maxRate)
		}
	}
	injected, total := p.Injected(), 0
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(injected)) {
		lines = append(lines, fmt.Sprintf("%s: %d", name, injected[name]))
		total += injected[name]
	}
	w.t.Logf("proxy %d: %d faults (%s)", number, total, strings.Join(lines, ", "))
	w.t.Logf("proxy %d: the fastest programs are %+v", number, rates[:min(4, len(rates))])
	if total < faultJobs/2 {
		w.t.Errorf("proxy %d injected %d faults, want at least %d", number, total, faultJobs/2)
	}
}
