package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
)

// The limits that the benchmarks print next to their results.
const (
	jobLimit       = 0.9 // of a job, as a ratio to docker run
	burstLimit     = 1.2 // of a burst, as a ratio to docker run
	firstLineLimit = 300 * time.Millisecond
)

// anonymousLimitMB limits the memory of an agent with one idle pool, by its deploy_target. The
// pages of the program's file do not count: the kernel reclaims them when it needs memory.
var anonymousLimitMB = map[string]float64{"docker": 12, "kubernetes": 13}

// jobTimer is a proxy between agents and the service. It records when a job was claimed,
// when its end was accepted, and how old its log lines were on arrival.
type jobTimer struct {
	mu      sync.Mutex
	claimed map[string]time.Time // by job id
	ended   map[string]time.Time // by job id: the last accepted status
	over    map[string]bool      // by job id and step: succeeded or failed was sent
	late    bool                 // a line came after the end of its step
	ages    []time.Duration      // of the last line of the batches at offset 0 and 1, without step 0
}

// timeJobs starts a jobTimer in front of the service of w. From then on, agents of w use
// the URL of the jobTimer.
func (w *world) timeJobs() *jobTimer {
	w.t.Helper()
	v := &jobTimer{claimed: map[string]time.Time{}, ended: map[string]time.Time{}, over: map[string]bool{}}
	_, w.url = w.front(v.asked, v.answered)
	return v
}

// forget makes the jobTimer forget the claims so far.
func (v *jobTimer) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.claimed)
}

// parts splits /api/workflow/jobs/{job}/{step}/{what}.
func parts(path string) (job, step, what string) {
	fields := strings.Split(strings.TrimPrefix(path, "/api/workflow/jobs/"), "/")
	if len(fields) != 3 {
		return "", "", ""
	}
	return fields[0], fields[1], fields[2]
}

func (v *jobTimer) asked(r *http.Request) {
	job, step, what := parts(r.URL.Path)
	v.mu.Lock()
	defer v.mu.Unlock()
	var status cloud.StepStatus
	if what == "status" && bodyTo(r, &status) == nil && (status.Status == "succeeded" || status.Status == "failed") {
		v.over[job+"/"+step] = true
	}
	var batch cloud.LogBatch
	if what != "logs" || bodyTo(r, &batch) != nil || len(batch.Lines) == 0 {
		return
	}
	v.late = v.late || v.over[job+"/"+step]
	if step != "0" && batch.Offset <= 1 {
		v.ages = append(v.ages, time.Since(batch.Lines[len(batch.Lines)-1].Time))
	}
}

func (v *jobTimer) answered(r *http.Response) error {
	claim, err := claimOf(r)
	v.mu.Lock()
	defer v.mu.Unlock()
	if claim.JobID != "" {
		v.claimed[claim.JobID] = time.Now()
	}
	if job, _, what := parts(r.Request.URL.Path); what == "status" && r.StatusCode/100 == 2 {
		v.ended[job] = time.Now() // the last one counts
	}
	return err
}

// spans returns the time from claim to accepted end of each job, and the time from the
// first claim to the last end.
func (v *jobTimer) spans() (each []time.Duration, whole time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var first, last time.Time
	for job, started := range v.claimed {
		each = append(each, v.ended[job].Sub(started))
		if first.IsZero() || started.Before(first) {
			first = started
		}
		if v.ended[job].After(last) {
			last = v.ended[job]
		}
	}
	return each, last.Sub(first)
}

func median(spans []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(spans))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

// bridgeNetwork gives jobs the network of docker run, beside which they are measured.
const bridgeNetwork = "docker: {network: bridge}"

func dockerRun(tb testing.TB) time.Duration {
	started := time.Now()
	if out, err := exec.Command("docker", "run", "--rm", baseImage, "sh", "-c", "true").CombinedOutput(); err != nil {
		tb.Fatalf("docker run: %v: %s", err, out)
	}
	return time.Since(started)
}

// BenchmarkJobBesideDockerRun compares one job, from its claim to its accepted
// end, with docker run --rm of the same image and command, pair by pair.
func BenchmarkJobBesideDockerRun(b *testing.B) {
	const pairs = 24
	for b.Loop() {
		w := newWorld(b, "docker")
		v := w.timeJobs()
		w.agent("polling_interval: 100ms", bridgeNetwork)
		one := func(i int) {
			name := fmt.Sprint("pair-", i)
			w.runShort(name, w.poolID)
			w.waitRemoved(name)
		}
		one(-1) // the first job copies the runner
		dockerRun(b)
		v.forget()
		var peer []time.Duration
		for i := range pairs {
			peer = append(peer, dockerRun(b))
			one(i)
		}
		ours, _ := v.spans()
		mine, its := median(ours), median(peer)
		b.ReportMetric(float64(mine.Milliseconds()), "ms/job")
		b.ReportMetric(float64(its.Milliseconds()), "ms/docker-run")
		b.ReportMetric(float64((mine - its).Milliseconds()), "ms-more")
		b.ReportMetric(float64(mine)/float64(its), "ratio")
		b.Logf("%d pairs: median job %s, median docker run %s, difference %s, ratio %.2f (limit %.1f)",
			len(ours), mine, its, mine-its, float64(mine)/float64(its), jobLimit)
		v.mu.Lock()
		b.Logf("first lines reached the service %s old at the median, %s at most (limit %s); lines after the end: %v",
			median(v.ages), slices.Max(v.ages), firstLineLimit, v.late)
		v.mu.Unlock()
	}
}

// BenchmarkJobBurst compares 24 jobs, 4 at a time, with 24 runs of docker run, 4 at a time.
func BenchmarkJobBurst(b *testing.B) {
	const jobs, atOnce = 24, 4
	for b.Loop() {
		w := newWorld(b, "docker")
		v := w.timeJobs()
		agent := w.agent("max_concurrent_workflows: 1", bridgeNetwork)
		w.runShort("first", w.poolID)
		agent.signal(os.Interrupt)
		agent.exit(cli.ExitOK)
		v.forget()

		started := time.Now()
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for range jobs / atOnce {
					dockerRun(b)
				}
			})
		}
		all.Wait()
		its := time.Since(started)

		for i := range jobs {
			w.queueShort(fmt.Sprint("burst-", i), w.poolID)
		}
		w.agent("max_concurrent_workflows: 4", bridgeNetwork)
		for i := range jobs {
			w.await(fmt.Sprint("burst-", i), "succeeded")
		}
		_, mine := v.spans()
		b.ReportMetric(mine.Seconds(), "s/burst")
		b.ReportMetric(its.Seconds(), "s/docker-run")
		b.ReportMetric(float64(mine)/float64(its), "ratio")
		b.Logf("%d jobs, %d at a time: %s, docker run %s, ratio %.2f (limit %.1f)", jobs, atOnce, mine, its,
			float64(mine)/float64(its), burstLimit)
	}
}

// BenchmarkRunIdle shows the CPU time and memory of an idle agent.
func BenchmarkRunIdle(b *testing.B) {
	for _, target := range []string{"docker", "kubernetes"} {
		b.Run(target, func(b *testing.B) {
			for b.Loop() {
				w := newWorld(b, target)
				agent := w.agent("polling_interval: 1h", "log_level: info")
				agent.waitFor("converged")
				agent.ends(3 * time.Second) // until its memory is stable
				before := cpu(b, agent)
				agent.ends(5 * time.Second)
				used := cpu(b, agent) - before
				anonymous, limit := anonymousMB(b, agent), anonymousLimitMB[target]
				b.ReportMetric(anonymous, "MB-anonymous")
				b.ReportMetric(float64(used), "cpu-ticks/5s")
				b.Logf("one idle pool: %.1f MB of anonymous memory (limit %.0f), %d CPU ticks of 10 ms in 5 s between "+
					"two polls", anonymous, limit, used)
			}
		})
	}
}

// cpu returns the CPU time of a program, in ticks of 10 ms (proc(5)).
func cpu(tb testing.TB, p *program) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	noError(tb, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, _ := strconv.Atoi(fields[12])
	system, _ := strconv.Atoi(fields[13])
	return user + system
}

// anonymousMB returns the resident anonymous memory of a program, its heap and stacks (proc(5)).
func anonymousMB(tb testing.TB, p *program) float64 {
	kB := memoryOf(p.cmd.Process.Pid, "RssAnon")
	if kB == 0 {
		tb.Fatal("no RssAnon")
	}
	return float64(kB) / 1024
}

// memoryOf returns a field of /proc/PID/status in kB, or 0 without this field.
func memoryOf(pid int, field string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kB, _ := strconv.Atoi(strings.Fields(value)[0])
			return kB
		}
	}
	return 0
}
