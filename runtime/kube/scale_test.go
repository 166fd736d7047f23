package kube

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// maxMemory is the most memory that one running job may take in the executor, in
// bytes.
const maxMemory = 40 << 10

// serveVariable makes TestServe serve.
const serveVariable = "CMWA_TEST_SERVE"

// TestServe is the main function of a process that TestManyJobs starts: a fake
// cluster whose memory is not counted. It ends with its standard input, and does
// nothing in any other process.
func TestServe(t *testing.T) {
	if os.Getenv(serveVariable) == "" {
		return
	}
	s := newScripted(t, last)
	config := s.Config()
	line, err := json.Marshal(address{config.Host, config.CAData})
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout.Write(append(line, '\n'))
	_, _ = io.Copy(io.Discard, os.Stdin)
	before := s.Requests()
	line, _ = json.Marshal(before)
	os.Stdout.Write(append(line, '\n'))
}

// address is how a fake cluster in another process is reached.
type address struct {
	Host string
	CA   []byte
}

// served starts a fake cluster in another process. Stop ends it, and returns the
// requests that it has served.
func served(t *testing.T) (config *rest.Config, stop func() map[string]int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServe$")
	cmd.Env, cmd.Stderr = append(os.Environ(), serveVariable+"=1"), os.Stderr
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
	lines := bufio.NewScanner(output)
	var at address
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &at) != nil {
		t.Fatalf("the fake cluster prints %q", lines.Text())
	}
	config = &rest.Config{Host: at.Host, TLSClientConfig: rest.TLSClientConfig{CAData: at.CA}}
	stop = sync.OnceValue(func() (requests map[string]int) {
		_ = input.Close()
		if lines.Scan() {
			_ = json.Unmarshal(lines.Bytes(), &requests)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return requests
	})
	t.Cleanup(func() { stop() })
	return config, stop
}

// TestManyJobs runs many jobs at a time. CMWA_TEST_JOBS sets how many.
func TestManyJobs(t *testing.T) {
	jobs := 200
	if set, err := strconv.Atoi(os.Getenv("CMWA_TEST_JOBS")); err == nil {
		jobs = set
	}
	config, stop := served(t)
	cluster, err := New(Options{
		RunnerDirectory: runnerDirectory,
		Config:          config, Namespace: testNamespace, Image: agentImage, Agent: "agent-1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	e := cluster.Executor("")
	if err := e.pods.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	service := runtimetest.NewService()
	start := func(i int) string {
		job := testJob()
		job.ID, job.Definition = "job-"+strconv.Itoa(i), runtimetest.Definition("true")
		service.Add(job)
		id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.Offer(job)))
		if err != nil {
			t.Errorf("start: %v", err)
		}
		return id
	}
	start(-1) // what is made once
	before := memory()

	// Start them, and attend each as a pool does.
	ids := make([]string, jobs)
	began := time.Now()
	var group sync.WaitGroup
	for i := range jobs {
		group.Go(func() { ids[i] = start(i) })
	}
	group.Wait()
	took := time.Since(began)
	service = nil
	var attended, followed sync.WaitGroup
	for _, id := range ids {
		followed.Add(1)
		attended.Go(func() { _, _ = e.Wait(t.Context(), id) })
		attended.Go(func() {
			stream, err := e.Follow(t.Context(), id)
			if err != nil {
				t.Errorf("follow: %v", err)
				followed.Done()
				return
			}
			defer stream.Close()
			lines := bufio.NewReaderSize(stream, 64)
			_, _, _ = lines.ReadLine()
			followed.Done()
			_, _ = io.Copy(io.Discard, lines)
		})
	}
	followed.Wait()
	used := (memory() - before) / int64(jobs)
	t.Logf("%d jobs started in %v; %d bytes a job", jobs, took.Round(time.Millisecond), used)
	if used > maxMemory {
		t.Errorf("a job takes %d bytes, want at most %d", used, maxMemory)
	}

	// Nothing is polled, and one watch serves them all.
	requests := stop()
	t.Logf("requests: %v", requests)
	total := 0
	for _, n := range requests {
		total += n
	}
	if requests["watch"]+requests["list"] > 2 || total > 4*jobs+jobs/2+10 {
		t.Errorf("requests: %v", requests)
	}
	e.Close()
}

// memory returns what is in use after a collection: heap and stacks.
func memory() int64 {
	debug.FreeOSMemory()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
