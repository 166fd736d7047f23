package docker

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// testImage is the image of the jobs in tests.
const testImage = "cmwa-test/base:latest"

// runnerDirectory is the directory of the runner in tests.
const runnerDirectory = "/mnt/pulumi/workflow"

// hostNetwork is the network of most jobs in tests. An engine starts a container without a network
// of its own in less than half the time.
const hostNetwork = "host"

const hint = "run testdata/toolchain/up, which starts an engine and makes the images"

func TestMain(m *testing.M) {
	code := m.Run()
	if directory, err := buildStandin(); err == nil {
		dropVolume(directory)
		_ = os.RemoveAll(directory)
	}
	// Connections to engines are closed half a minute after their last use.
	err := goleak.Find(
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	)
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// dropVolume removes the volume of the stand-in.
func dropVolume(directory string) {
	e, err := New(context.Background(), Options{
		Environ: os.LookupEnv, Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory,
	})
	if err != nil {
		return
	}
	defer e.engine.Close()
	if runner, err := e.programs.find(directory, e.architecture); err == nil {
		_, _ = e.engine.VolumeRemove(context.Background(), volumeName(runner), client.VolumeRemoveOptions{})
	}
}

// buildStandin returns a directory with the stand-in for the runner. The stand-in is built once.
var buildStandin = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "cmwa-standin-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o",
		filepath.Join(directory, "workflow-runner-linux-"+goruntime.GOARCH), "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return directory, fmt.Errorf("build the stand-in: %w\n%s", err, out)
	}
	return directory, nil
})

// standin returns a working directory with the stand-in.
func standin(t testing.TB) string {
	t.Helper()
	directory, err := buildStandin()
	if err != nil {
		t.Fatal(err)
	}
	return directory
}

// newExecutor creates an executor for the engine that the environment names.
func newExecutor(t testing.TB, set ...string) *Executor {
	t.Helper()
	e, err := New(t.Context(), Options{
		Environ: environ(set...), Agent: "tests", Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory,
	})
	if err != nil {
		t.Fatalf("%v\n(%s)", err, hint)
	}
	t.Cleanup(func() { _ = e.engine.Close() })
	if _, err := e.engine.ImageInspect(t.Context(), testImage); err != nil && len(set) == 0 {
		t.Fatalf("%v\n(%s)", err, hint)
	}
	return e
}

// environ returns a function that looks up a variable in set, and then in the environment.
func environ(set ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, entry := range set {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value, true
			}
		}
		return os.LookupEnv(name)
	}
}

// newJob returns a job for the stand-in. The containers of the job are removed at the end of
// the test.
func newJob(t testing.TB, e *Executor, request string) *runtime.Job {
	t.Helper()
	name := rand.Text()[:10]
	job := &runtime.Job{
		ID: "job-" + name, WorkflowID: "deployment-" + name, Kind: runtime.Deployment,
		Agent: "agent-" + name, Pool: "pool-" + name, PoolName: "a pool", Generation: 3,
		Token: secret.New("token-" + rand.Text()), OIDC: secret.New("oidc-" + rand.Text()),
		Service: "http://service.invalid",
		Tuning: runtime.Tuning{Instance: runtime.InstanceSpec{
			WorkingDirectory: standin(t), Docker: runtime.Docker{Network: hostNetwork},
		}},
		Definition: runtime.Definition{Image: runtime.Image{Reference: testImage}, OS: "linux", Steps: 2,
			Raw: json.RawMessage(request)},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		left, err := e.List(ctx, job.Agent)
		if err != nil {
			t.Errorf("list leftovers: %v", err)
		}
		for _, found := range left {
			if err := e.Remove(ctx, found.ID, 0); err != nil {
				t.Errorf("remove leftover: %v", err)
			}
		}
	})
	return job
}

// setupLog is a service that collects the log of the set-up.
type setupLog struct {
	runtime.Cloud
	mu   sync.Mutex
	text strings.Builder
}

func (c *setupLog) Report(ctx context.Context, _ *runtime.Job, report runtime.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range report.Lines {
		c.text.WriteString(line.Text)
	}
	return ctx.Err()
}

func (c *setupLog) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func newSetup(job *runtime.Job, service runtime.Cloud) *runtime.Setup {
	return runtime.NewSetup(job, service, runtime.Handoff{
		Version: runtime.HandoffVersion, Service: job.Service, JobID: job.ID,
		Token: job.Token.Reveal(), OIDC: job.OIDC.Reveal(), Definition: job.Definition.Raw,
		Redact: []string{job.Definition.Image.Password.Reveal()},
	})
}

// start starts a job successfully, and returns the log of the set-up.
func start(t testing.TB, e *Executor, job *runtime.Job) (id, log string) {
	t.Helper()
	id, log, err := tryStart(t, e, job)
	if err != nil {
		t.Fatalf("start: %v\n%s", err, log)
	}
	return id, log
}

func tryStart(t testing.TB, e *Executor, job *runtime.Job) (id, log string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	service := &setupLog{}
	setup := newSetup(job, service)
	id, err = e.Start(ctx, job, setup)
	if err != nil {
		if err := setup.Fail(ctx, err); err != nil {
			t.Error(err)
		}
	}
	return id, service.log(), err
}

// readProgress returns the first lines of progress of a container, or all until its end
// if lines is negative.
func readProgress(t testing.TB, e *Executor, id string, lines int) []runtime.Progress {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := e.Follow(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var all []runtime.Progress
	for scanner := bufio.NewScanner(stream); len(all) != lines && scanner.Scan(); {
		var progress runtime.Progress
		if err := json.Unmarshal(scanner.Bytes(), &progress); err != nil {
			t.Fatalf("the progress is %q: %v", scanner.Text(), err)
		}
		all = append(all, progress)
	}
	return all
}

func wait(t testing.TB, e *Executor, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := e.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

// leftovers returns the names of the containers of a job. It lists them without the executor.
func leftovers(t testing.TB, job *runtime.Job) []string {
	t.Helper()
	engine, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	all, err := engine.ContainerList(context.Background(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range all.Items {
		if one.Labels["cmwa.job"] == job.ID {
			names = append(names, one.Names...)
		}
	}
	slices.Sort(names)
	return names
}
