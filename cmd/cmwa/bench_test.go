package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
	url string

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
	target, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(target.Hostname(), "0"))
	if err != nil {
		w.t.Fatal(err)
	}
	v := &jobTimer{
		url: "http://" + listener.Addr().String(), claimed: map[string]time.Time{}, ended: map[string]time.Time{},
		over: map[string]bool{},
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = v.answered
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		v.asked(r)
		proxy.ServeHTTP(rw, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	w.t.Cleanup(func() { _ = server.Close(); <-done })
	w.url = v.url
	return v
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
	if what == "" {
		return
	}
	text, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(text))
	v.mu.Lock()
	defer v.mu.Unlock()
	var status cloud.StepStatus
	if what == "status" && json.Unmarshal(text, &status) == nil && (status.Status == "succeeded" ||
		status.Status == "failed") {
		v.over[job+"/"+step] = true
	}
	var batch cloud.LogBatch
	if what != "logs" || json.Unmarshal(text, &batch) != nil || len(batch.Lines) == 0 {
		return
	}
	v.late = v.late || v.over[job+"/"+step]
	if step != "0" && batch.Offset <= 1 {
		v.ages = append(v.ages, time.Since(batch.Lines[len(batch.Lines)-1].Time))
	}
}

func (v *jobTimer) answered(r *http.Response) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.Request.URL.Path == "/api/deployments/poll" && r.StatusCode == http.StatusOK {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		var poll cloud.Poll
		if json.Unmarshal(text, &poll) == nil {
			v.claimed[poll.JobID] = time.Now()
		}
	}
	if job, _, what := parts(r.Request.URL.Path); what == "status" && r.StatusCode/100 == 2 {
		v.ended[job] = time.Now() // the last one counts
	}
	return nil
}

// spans returns the time from claim to accepted end of each job, and the time from the
// first claim to the last end.
func (v *jobTimer) spans() (each []time.Duration, whole time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var first, last time.Time
	for job, began := range v.claimed {
		each = append(each, v.ended[job].Sub(began))
		if first.IsZero() || began.Before(first) {
			first = began
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
	began := time.Now()
	if out, err := exec.Command("docker", "run", "--rm", baseImage, "sh", "-c", "true").CombinedOutput(); err != nil {
		tb.Fatalf("docker run: %v: %s", err, out)
	}
	return time.Since(began)
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
			w.queue(name, order{Steps: []step{{Name: "a", Run: "true"}}})
			w.await(name, "succeeded")
			w.eventually("the container is removed", func() bool { return len(w.containers(name)) == 0 })
		}
		one(-1) // the first job copies the runner
		dockerRun(b)
		v.mu.Lock()
		clear(v.claimed)
		v.mu.Unlock()
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
		w.queue("first", order{Steps: []step{{Name: "a", Run: "true"}}})
		w.await("first", "succeeded")
		agent.signal(os.Interrupt)
		agent.exit(cli.ExitOK)
		v.mu.Lock()
		clear(v.claimed)
		v.mu.Unlock()

		began := time.Now()
		tickets := make(chan struct{}, jobs)
		for range jobs {
			tickets <- struct{}{}
		}
		close(tickets)
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for range tickets {
					dockerRun(b)
				}
			})
		}
		all.Wait()
		its := time.Since(began)

		for i := range jobs {
			w.queue(fmt.Sprint("burst-", i), order{Steps: []step{{Name: "a", Run: "true"}}})
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
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "stat"))
	if err != nil {
		tb.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, _ := strconv.Atoi(fields[12])
	system, _ := strconv.Atoi(fields[13])
	return user + system
}

// anonymousMB returns the resident anonymous memory of a program, its heap and stacks (proc(5)).
func anonymousMB(tb testing.TB, p *program) float64 {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status"))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kb / 1024
		}
	}
	tb.Fatal("no RssAnon")
	return 0
}
