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

// base is the image that jobs of the tests run in.
const base = "cmwa-test/base:latest"

// runnerDirectory is where jobs of the tests have the runner.
const runnerDirectory = "/mnt/pulumi/workflow"

const cure = "run testdata/toolchain/up, which starts an engine and makes the images"

func TestMain(m *testing.M) {
	code := m.Run()
	if folder, err := standins(); err == nil {
		dropVolume(folder)
		_ = os.RemoveAll(folder)
	}
	// Connections to engines end by themselves, half a minute after their last use.
	if err := goleak.Find(goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop")); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// dropVolume removes the volume of the stand-in.
func dropVolume(folder string) {
	e, err := New(context.Background(), Options{
		Environ: os.LookupEnv, Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory,
	})
	if err != nil {
		return
	}
	defer e.engine.Close()
	if runner, err := e.programs.find(folder, e.architecture); err == nil {
		_, _ = e.engine.VolumeRemove(context.Background(), volumeName(runner), client.VolumeRemoveOptions{})
	}
}

// standins is a folder with the runner's stand-in, built once.
var standins = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "cmwa-standin-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(folder, "workflow-runner-linux-"+goruntime.GOARCH), "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return folder, fmt.Errorf("build the stand-in: %w\n%s", err, out)
	}
	return folder, nil
})

// standin returns a working directory with the stand-in.
func standin(t testing.TB) string {
	t.Helper()
	folder, err := standins()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// open makes an executor for the engine of the process's environment.
func open(t testing.TB, set ...string) *Executor {
	t.Helper()
	e, err := New(t.Context(), Options{
		Environ: environ(set...), Agent: "tests", Log: slog.New(slog.DiscardHandler), RunnerDirectory: runnerDirectory,
	})
	if err != nil {
		t.Fatalf("%v\n(%s)", err, cure)
	}
	t.Cleanup(func() { _ = e.engine.Close() })
	if _, err := e.engine.ImageInspect(t.Context(), base); err != nil && len(set) == 0 {
		t.Fatalf("%v\n(%s)", err, cure)
	}
	return e
}

// environ looks up the settings, and then the process's environment.
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

// newJob makes a job for the stand-in. Whatever is made of it is removed when
// the test ends.
func newJob(t testing.TB, e *Executor, wishes string) *runtime.Job {
	t.Helper()
	name := rand.Text()[:10]
	job := &runtime.Job{
		ID: "job-" + name, Subject: "deployment-" + name, Kind: runtime.Deployment,
		Agent: "agent-" + name, Pool: "pool-" + name, PoolName: "a pool", Generation: 3,
		Token: secret.New("token-" + rand.Text()), OIDC: secret.New("oidc-" + rand.Text()),
		Service:    "http://service.invalid",
		Tuning:     runtime.Tuning{Place: runtime.Place{WorkingDirectory: standin(t)}},
		Definition: runtime.Definition{Image: runtime.Image{Reference: base}, OS: "linux", Steps: 2, Raw: json.RawMessage(wishes)},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		left, err := e.List(ctx, job.Agent)
		if err != nil {
			t.Errorf("list what is left: %v", err)
		}
		for _, found := range left {
			if err := e.Remove(ctx, found.ID, 0); err != nil {
				t.Errorf("remove what is left: %v", err)
			}
		}
	})
	return job
}

// teller is a service that only listens to the set-up.
type teller struct {
	runtime.Cloud
	mu   sync.Mutex
	text strings.Builder
	last runtime.Status
	sent int
}

func (c *teller) Report(ctx context.Context, _ *runtime.Job, report runtime.Report) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	for _, line := range report.Lines {
		c.text.WriteString(line.Text)
	}
	if report.Status != "" {
		c.last = report.Status
	}
	return ctx.Err()
}

func (c *teller) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func newSetup(job *runtime.Job, service runtime.Cloud) *runtime.Setup {
	return runtime.NewSetup(job, service, runtime.Handover{
		Version: runtime.HandoverVersion, Service: job.Service, JobID: job.ID,
		Token: job.Token.Reveal(), OIDC: job.OIDC.Reveal(), Definition: job.Definition.Raw,
		Redact: []string{job.Definition.Image.Password.Reveal()},
	})
}

// start starts a job, which must succeed, and returns the set-up's log too.
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
	service := &teller{}
	setup := newSetup(job, service)
	id, err = e.Start(ctx, job, setup)
	if err != nil {
		if err := setup.Fail(ctx, err); err != nil {
			t.Error(err)
		}
	}
	return id, service.log(), err
}

// said reads all progress of a container that ends, or the first lines of one
// that does not.
func said(t testing.TB, e *Executor, id string, lines int) []runtime.Progress {
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
			t.Fatalf("the runner says %q: %v", scanner.Text(), err)
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

// left names the containers of a job, by asking the engine in another way than
// the executor does.
func left(t testing.TB, job *runtime.Job) []string {
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
