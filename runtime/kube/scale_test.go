package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
	"github.com/cmwa-project/cmwa/runtime/pool"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits of many concurrent jobs in one agent.
const (
	maxMemory   = 40 << 10 // bytes per running job
	maxRequests = 7        // to the API server, per job: six, and another one after a conflict
	maxGrowth   = 1.2      // of the memory per job from 1,000 jobs to 5,000
)

// ownPod is the name of the agent's own Pod.
const ownPod = "agent-0"

// serveVariable is the environment variable that enables TestExecutorClusterProcess. Its
// value is the number of Pods at the start.
const serveVariable = "CMWA_TEST_SERVE"

// TestExecutorClusterProcess is the main function of a process that other tests start: a
// fake cluster in a separate process, so that the memory of the cluster is not counted. The
// jobs run until a line of the process's standard input is "end". The process answers each
// line with the number of requests served so far, by verb, and exits at the end of its
// input. Without the variable the test does nothing.
func TestExecutorClusterProcess(t *testing.T) {
	pods := 0
	if _, err := fmt.Sscan(os.Getenv(serveVariable), &pods); err != nil {
		return
	}
	end := make(chan struct{})
	api := kubetest.NewAPI(t)
	if pods == 0 { // Pods that exist at the start run already, and need no containers
		newFakeClusterOn(t, api, func(c *kubetest.Container) int {
			fmt.Fprintln(c, `{"step":1,"lines":2}`)
			select {
			case <-end:
				time.Sleep(rand.N(2 * time.Second)) // jobs do not all end at once
				return runtime.CodeSucceeded
			case <-c.Term:
				return 143
			}
		})
	}
	(&agents{API: api}).put(ownPod, "agent")
	if pods > 0 {
		pod := fullPod(t)
		for i := range pods {
			pod.Name, pod.UID = fmt.Sprintf("%s%05d", namePrefix, i), ""
			api.Put(pod)
		}
	}
	writeLine := func(value any) {
		line, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.Write(append(line, '\n'))
	}
	config := api.Config()
	writeLine(address{config.Host, config.CAData})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "end" {
			close(end)
		}
		writeLine(api.Requests())
	}
}

// fullPod returns a Pod of a running job with all fields that a cluster sets.
func fullPod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := newPod(t, testJob())
	pod.Namespace = testNamespace
	pod.Annotations[annotationHandoff] = string(make([]byte, 2000))
	fields := strings.Repeat(`{"f:status":{"f:conditions":{}}}`, 100)
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(fields)}}
	pod.Status = podWith(phase(corev1.PodRunning, "", ""), initIs(prepared(t)), mainIs(runs(MainContainer))).Status
	for _, kind := range []corev1.PodConditionType{
		"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled",
	} {
		condition(kind, corev1.ConditionTrue, "", "")(pod)
	}
	return pod
}

// address is the address of a fake cluster in another process.
type address struct {
	Host string
	CA   []byte
}

// startFakeCluster starts a fake cluster with this number of Pods in another process. Send
// writes a line to that process, and returns the number of requests that the process has
// served, by verb.
func startFakeCluster(t testing.TB, pods int) (config *rest.Config, send func(line string) map[string]int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestExecutorClusterProcess$")
	cmd.Env, cmd.Stderr = append(os.Environ(), fmt.Sprint(serveVariable, "=", pods)), os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(output)
	readValue := func(value any) {
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), value) != nil {
			t.Fatalf("the fake cluster prints %q, want JSON", lines.Text())
		}
	}
	var at address
	readValue(&at)
	config = &rest.Config{Host: at.Host, TLSClientConfig: rest.TLSClientConfig{CAData: at.CA}, QPS: -1}
	return config, func(line string) (counts map[string]int) {
		if _, err := io.WriteString(input, line+"\n"); err != nil {
			t.Fatal(err)
		}
		readValue(&counts)
		return counts
	}
}

// jobQueue is a fake service with a number of jobs, each of which is claimed once.
type jobQueue struct {
	*runtimetest.Service
	mu      sync.Mutex
	jobs    int // number of all jobs
	claimed int // number of claimed jobs
}

func (s *jobQueue) Claim(context.Context) (claim runtime.Claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed == s.jobs {
		return runtime.Claim{Next: runtime.NextPoll{At: time.Now().Add(10 * time.Millisecond)}}, nil
	}
	s.claimed++
	id := fmt.Sprint("job-", s.claimed)
	return runtime.Claim{Job: &runtime.Job{
		ID: id, Kind: runtime.Deployment, WorkflowID: "deployment-of-" + id, Token: secret.New("token-of-" + id),
	}}, nil
}

func (s *jobQueue) Definition(context.Context, *runtime.Job) (runtime.Definition, error) {
	return runtimetest.Definition("true"), nil
}

func (s *jobQueue) Report(context.Context, *runtime.Job, runtime.Report) error { return nil }

// loadResult is the cost of many concurrent jobs.
type loadResult struct {
	bytes    int64          // of memory, per running job
	requests map[string]int // by verb, for all jobs
	idle     map[string]int // requests in one second while all jobs run, by verb
	started  time.Duration  // until all jobs run
}

// perJob returns the number of requests per job.
func (l loadResult) perJob(jobs int) float64 {
	total := 0
	for _, n := range l.requests {
		total += n
	}
	return float64(total) / float64(jobs)
}

// runJobs runs this number of concurrent jobs in one pool, from their claims to their
// removals.
func runJobs(t testing.TB, jobs int) (l loadResult) {
	t.Helper()
	config, send := startFakeCluster(t, 0)
	requests := func() map[string]int { return send("") }
	cluster := newCluster(t, Options{Config: config, Namespace: testNamespace, Agent: "agent-1", Pod: ownPod})
	if err := cluster.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	e, cloud := cluster.Executor(""), &jobQueue{Service: runtimetest.NewService(), jobs: 1}
	spec := runtime.PoolSpec{Name: "main", Identity: testJob().Identity, Tuning: runtime.Tuning{
		MaxJobs: jobs + 1, PollingInterval: time.Millisecond, StatusInterval: time.Minute,
	}}
	// The pool lists the records of other agents once a minute. On a slow machine, the jobs run
	// longer than that, so the journal does not adopt records.
	records := struct{ runtime.Journal }{journalOf(e)}
	pool := pool.New(spec, pool.Parts{
		Cloud: cloud, Executor: e, Journal: records, Agent: "agent-1", Close: e.Close, Environ: environ(nil),
		Log: slog.New(slog.DiscardHandler),
	})
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(t.Context()) }()
	running := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(clusterLimit); ; time.Sleep(20 * time.Millisecond) {
			n := 0
			for _, job := range pool.State().Jobs {
				if job.Phase == runtime.Started {
					n++
				}
			}
			if n >= want && requests()["log"] >= want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d jobs run: %v", n, want, requests())
			}
		}
	}

	// Run one job first, because it allocates shared objects.
	running(1)
	before, first := memory(), requests()
	began := time.Now()
	cloud.mu.Lock()
	cloud.jobs += jobs
	cloud.mu.Unlock()
	running(jobs + 1)
	l.started = time.Since(began)
	l.bytes = (memory() - before) / int64(jobs)

	// Count the requests in one second while the jobs run. None are expected.
	quiet := requests()
	time.Sleep(time.Second)
	l.idle = difference(requests(), quiet)

	// End and remove all jobs.
	send("end")
	pool.Drain()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	l.requests = difference(requests(), first)
	return l
}

// difference returns now minus before, by verb.
func difference(now, before map[string]int) map[string]int {
	more := map[string]int{}
	for verb, n := range now {
		if n > before[verb] {
			more[verb] = n - before[verb]
		}
	}
	return more
}

// memory returns the size of heap and stacks after several collections. Each collection
// halves stacks that are too large.
func memory() int64 {
	for range 5 {
		debug.FreeOSMemory()
	}
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// check checks the results that do not depend on the machine.
func (l loadResult) check(t testing.TB, jobs int) {
	t.Helper()
	if l.bytes > maxMemory && !raceEnabled { // the race detector's stacks are larger
		t.Errorf("a job takes %d bytes, want at most %d", l.bytes, maxMemory)
	}
	if l.perJob(jobs) > maxRequests && !raceEnabled { // on a slow machine, more updates meet a conflict
		t.Errorf("a job takes %.1f requests, want at most %d: %v", l.perJob(jobs), maxRequests, l.requests)
	}
	if l.requests["watch"]+l.requests["list"] > 0 || len(l.idle) > 0 {
		t.Errorf("the API server is polled: %v in total, %v in one second while all jobs run", l.requests, l.idle)
	}
}

func TestExecutorManyJobs(t *testing.T) {
	const jobs = 200
	l := runJobs(t, jobs)
	t.Logf("%d jobs at a time: %d bytes a job, %.1f requests a job", jobs, l.bytes, l.perJob(jobs))
	l.check(t, jobs)
}

// BenchmarkExecutorManyJobs runs 1,000 and then 5,000 concurrent jobs in one pool.
func BenchmarkExecutorManyJobs(b *testing.B) {
	for b.Loop() {
		per := map[int]int64{}
		for _, jobs := range []int{1000, 5000} {
			b.Logf("starting %d jobs", jobs)
			l := runJobs(b, jobs)
			per[jobs] = l.bytes
			b.ReportMetric(float64(l.bytes)/1024, fmt.Sprintf("KB/job-of-%d", jobs))
			b.Logf("%d concurrent jobs: %.1f KB per job (limit %d), %.1f requests per job (limit %d), "+
				"all running after %s, requests in one second while all run: %v",
				jobs, float64(l.bytes)/1024, maxMemory>>10, l.perJob(jobs), maxRequests,
				l.started.Round(100*time.Millisecond), l.idle)
			l.check(b, jobs)
		}
		growth := float64(per[5000]) / float64(per[1000])
		b.ReportMetric(growth, "ratio")
		b.Logf("a job among 5,000 takes %.2f times the memory of one among 1,000 (limit %.1f)", growth, maxGrowth)
		if growth > maxGrowth {
			b.Errorf("the memory per job grows with the number of jobs: %.2f times", growth)
		}
	}
}

// withoutStreams simulates an API server that does not send lists as streams.
func withoutStreams(next http.RoundTripper) http.RoundTripper {
	return transport(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("sendInitialEvents") == "" {
			return next.RoundTrip(r)
		}
		const text = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}`
		return &http.Response{
			StatusCode: http.StatusUnprocessableEntity, Request: r, Body: io.NopCloser(strings.NewReader(text)),
			Header: http.Header{"Content-Type": {"application/json"}},
		}, nil
	})
}

// transport is a function that implements http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
