package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/handoff"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxSize is the maximum size of the stripped program in bytes. The size matters because
// the agent copies the program into every job.
const maxSize = 9 << 20

// storyLimit is far longer than any of these tests takes.
const storyLimit = time.Minute

// build builds the program once per test run, with the flags of a release, and returns its
// path.
var build = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "workflow-runner-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(directory, "workflow-runner")
	flags := "-s -w -X github.com/cmwa-project/cmwa/cmd/cli.version=v1.2.3"
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func program(t *testing.T) string {
	t.Helper()
	path, err := build()
	noError(t, err)
	return path
}

// story is one job at a test service. The test fails if the service refuses a request.
type story struct {
	t       *testing.T
	service *runtimetest.Service
	job     *runtime.Job
	root    string
}

func newStory(t *testing.T, address, root string, scripts ...string) *story {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	noError(t, err)
	service := runtimetest.NewService()
	server := &http.Server{Handler: service, ReadHeaderTimeout: storyLimit}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	s := &story{t: t, service: service, root: root, job: &runtime.Job{
		ID: "job-1", Service: "http://" + listener.Addr().String(), Token: secret.New("job-token-" + rand.Text()),
		Definition: runtimetest.Definition(scripts...),
	}}
	service.Add(s.job)
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		for _, violation := range service.Violations() {
			t.Errorf("the service refused %s", violation)
		}
		if t.Failed() {
			t.Logf("the record of the service: %+v", service.Record("job-1"))
		}
	})
	if err := service.Report(t.Context(), s.job, runtime.Report{Status: runtime.Running}); err != nil {
		t.Fatal(err)
	}
	return s
}

// handoff returns the handoff that the agent would write.
func (s *story) handoff() []byte {
	h := runtimetest.BaseHandoff(s.job)
	h.Root = s.root
	text, err := json.Marshal(h)
	noError(s.t, err)
	return text
}

// process is a started program.
type process struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr bytes.Buffer
}

func (s *story) start(name string, args ...string) *process {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), storyLimit)
	p := &process{Cmd: exec.CommandContext(ctx, name, args...), t: s.t}
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(s.handoff()), &p.stdout, &p.stderr
	s.t.Cleanup(cancel)
	noError(s.t, p.Start())
	return p
}

// exit waits for the end of the process and checks its exit code.
func (p *process) exit(want int) {
	p.t.Helper()
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if code := p.ProcessState.ExitCode(); code != want {
		p.t.Errorf("exit code %d, want %d; the output is\n%s%s", code, want, p.stdout.String(), p.stderr.String())
	}
}

func (s *story) await(text string) {
	s.t.Helper()
	s.service.Await(s.t, s.job.ID, text, func(r runtimetest.Record) bool { return strings.Contains(r.Text(1), text) })
}

func (s *story) want(statuses ...runtime.Status) {
	s.t.Helper()
	if got := s.service.Record(s.job.ID).Statuses(); !slices.Equal(got, statuses) {
		s.t.Errorf("the steps are %v, want %v", got, statuses)
	}
}

// TestExecuteLocalLog runs a job whose log also goes to standard error. Secrets are redacted there too, and a step
// cannot write a line of progress.
func TestExecuteLocalLog(t *testing.T) {
	t.Parallel()
	for name, local := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t, "127.0.0.1", t.TempDir(), "", "")
			s.job.Definition = runtimetest.Definition(
				`echo hello; echo '{"step":77}'; echo `+s.job.Token.Reveal(), "exit 3")
			s.job.Tuning.Instance.LocalLog = local
			p := s.start(program(t), "run")
			p.exit(runtime.CodeFailed)
			got := p.stderr.String()
			for _, line := range []string{
				"step 1 | hello\n", `step 1 | {"step":77}` + "\n", "step 2 | $ exit 3\n", "step 2 | Error: ",
			} {
				if strings.Contains(got, line) != local {
					t.Errorf("%q is in standard error: %t\n%s", line, !local, got)
				}
			}
			if strings.Contains(got, s.job.Token.Reveal()) || strings.Contains("\n"+got, "\n{") {
				t.Errorf("standard error has a secret, or a line of progress:\n%s", got)
			}
		})
	}
}

func TestExecuteSizeAndVersion(t *testing.T) {
	path := program(t)
	info, err := os.Stat(path)
	noError(t, err)
	if info.Size() > maxSize {
		t.Errorf("the program has %d bytes, at most %d are allowed", info.Size(), maxSize)
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "workflow-runner v1.2.3\ncommit: ") {
		t.Errorf("version prints %q (%v)", out, err)
	}
}

func TestExecute(t *testing.T) {
	for line, want := range map[string]struct {
		code           int
		stdout, stderr string // beginning of the output
	}{
		"version":      {stdout: "workflow-runner dev\ncommit: "},
		"--version":    {stdout: "workflow-runner dev\ncommit: "},
		"-v":           {stdout: "workflow-runner dev\ncommit: "},
		"help":         {stdout: usage},
		"--help":       {stdout: usage},
		"-h":           {stdout: usage},
		"help run":     {stdout: "Usage:\n  workflow-runner run\n"},
		"run --help":   {stdout: "Usage:\n  workflow-runner run\n"},
		"help prepare": {stdout: "Usage:\n  workflow-runner prepare DIRECTORY FILE\n"},
		"":             {code: runtime.CodeUsage, stderr: usage},
		"help walk": {code: runtime.CodeUsage,
			stderr: "workflow-runner: unknown command \"walk\": see workflow-runner help\n"},
		"walk": {code: runtime.CodeUsage,
			stderr: "workflow-runner: unknown command \"walk\": see workflow-runner help\n"},
		"key": {code: runtime.CodeUsage,
			stderr: "workflow-runner: wrong arguments\n\nUsage:\n  workflow-runner key"},
		"run --handoff":   {code: runtime.CodeUsage, stderr: "workflow-runner: wrong arguments\n"},
		"run --handoff f": {code: runtime.CodeUsage, stderr: "workflow-runner: wrong arguments\n"},
		"version of what": {code: runtime.CodeUsage, stderr: "workflow-runner: wrong arguments\n"},
	} {
		t.Run(line, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := execute(strings.Fields(line), nil, nil, &stdout, &stderr)
			if code != want.code || !strings.HasPrefix(stdout.String(), want.stdout) ||
				!strings.HasPrefix(stderr.String(), want.stderr) ||
				(stdout.Len() > 0) != (want.code == 0) || (stderr.Len() > 0) != (want.code != 0) {
				t.Errorf("exit code %d, stdout\n%s\nstderr\n%s", code, &stdout, &stderr)
			}
		})
	}
}

func TestRunJob(t *testing.T) {
	s := newStory(t, "127.0.0.1", t.TempDir(), "echo hello", "exit 7")
	p := s.start(program(t), "run")
	p.exit(runtime.CodeFailed)
	s.want(runtime.Succeeded, runtime.Succeeded, runtime.Failed)
	var last runtime.Progress
	for line := range strings.Lines(p.stdout.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("standard output has %q: %v", line, err)
		}
	}
	if last.Step != 2 || last.Status != runtime.Failed {
		t.Errorf("the last progress is %+v", last)
	}
	if setup := s.service.Record(s.job.ID).Text(0); !strings.Contains(setup, "Workflow runner v1.2.3") {
		t.Errorf("the log of step 0 does not name the version of the runner:\n%s", setup)
	}
}

func TestRunWithoutHandoff(t *testing.T) {
	for name, c := range map[string]struct{ stdin, want string }{
		"nothing":         {"", "only the agent starts this program"},
		"no JSON":         {"hello", "not in the form"},
		"another release": {`{"version":999}`, "for handoffs of version 1"},
		"no job":          {`{"version":1}`, "has no service"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program(t), "run")
			cmd.Stdin = strings.NewReader(c.stdin)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != runtime.CodeUsage ||
				!strings.Contains(string(out), c.want) || strings.Count(string(out), "component=runner") != 1 {
				t.Errorf("the runner ends with %v and prints %q, want exit code %d, one component and %q",
					err, out, runtime.CodeUsage, c.want)
			}
		})
	}
}

// TestRunSignals stops a runner with each signal that may be the stop signal of an image. The
// first one terminates the step, and the second one kills it.
func TestRunSignals(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		inPod  bool
	}{
		{syscall.SIGTERM, false}, {syscall.SIGTERM, true}, {syscall.SIGINT, true}, {syscall.SIGQUIT, true},
		{syscall.SIGUSR1, true}, {syscall.SIGWINCH, true},
	} {
		t.Run(fmt.Sprintf("%s, in a Pod: %v", c.signal, c.inPod), func(t *testing.T) {
			t.Parallel()
			s := newStory(t, "127.0.0.1", t.TempDir(),
				`trap 'echo not yet' TERM; echo started; while :; do sleep 1 & wait $!; done`)
			args := []string{"run"}
			if c.inPod {
				args = append(args, s.packed()...)
			}
			p := s.start(program(t), args...)
			s.await("\nstarted\n")
			noError(t, p.Process.Signal(c.signal))
			s.await("\nnot yet\n")
			noError(t, p.Process.Signal(c.signal))
			p.exit(runtime.CodeFailed)
			s.want(runtime.Succeeded, runtime.Failed)
			s.await("\nnot yet\nError: the job was stopped by a signal to its runner\n")
		})
	}
}

// packed writes the handoff into a file as a Pod gets it, and returns the arguments that name it.
func (s *story) packed() []string {
	s.t.Helper()
	sender, err := handoff.NewSender()
	noError(s.t, err)
	packed, err := sender.Pack(s.handoff(), handoff.MaxObject)
	noError(s.t, err)
	file := filepath.Join(s.t.TempDir(), handoff.PackedFile)
	noError(s.t, os.WriteFile(file, packed, 0o600))
	return []string{"--handoff", file, "--sender", sender.Public()}
}

// runInto runs the program with a pipe as its standard output, and checks that the job succeeds.
func (s *story) runInto(pipe *os.File) {
	s.t.Helper()
	path := program(s.t)
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "run")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(s.handoff()), pipe
	err := cmd.Run()
	_ = pipe.Close()
	if err != nil {
		s.t.Errorf("the runner ends with %v", err)
	}
	s.want(runtime.Succeeded, runtime.Succeeded, runtime.Succeeded)
}

func TestRunClosedProgress(t *testing.T) {
	s := newStory(t, "127.0.0.1", t.TempDir(), "echo one", "yes | head -n 1; echo two")
	reader, writer, err := os.Pipe()
	noError(t, err)
	_ = reader.Close()
	s.runInto(writer)
	if text := s.service.Record(s.job.ID).Text(2); !strings.HasSuffix(text, "\ny\ntwo\n") {
		t.Errorf("a program of a step does not end when it writes to a closed pipe:\n%s", text)
	}
}

// fullPipe returns a pipe that is full and that nothing reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	noError(t, err)
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	noError(t, writer.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := writer.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe is not full: %v", err)
	}
	return writer
}

func TestRun(t *testing.T) {
	t.Run("job ends although nothing reads the full pipe of its progress", func(t *testing.T) {
		t.Parallel()
		newStory(t, "127.0.0.1", t.TempDir(), "echo one", "echo two").runInto(fullPipe(t))
	})
	t.Run("signal stops a job although nothing reads the full pipe of its local log", func(t *testing.T) {
		t.Parallel()
		s := newStory(t, "127.0.0.1", t.TempDir(), "seq 100000; echo all; sleep 1000")
		s.job.Tuning.Instance.LocalLog = true
		ctx, cancel := context.WithTimeout(t.Context(), storyLimit)
		defer cancel()
		p := &process{Cmd: exec.CommandContext(ctx, program(t), "run"), t: t}
		p.Stdin, p.Stderr = bytes.NewReader(s.handoff()), fullPipe(t)
		noError(t, p.Start())
		s.await("\nall\n")
		noError(t, p.Process.Signal(syscall.SIGTERM))
		p.exit(runtime.CodeFailed)
		s.want(runtime.Succeeded, runtime.Failed)
		s.await("\nError: the job was stopped by a signal to its runner\n")
	})
}

func TestRunWithASealedHandoff(t *testing.T) {
	s := newStory(t, "127.0.0.1", t.TempDir(), "echo hello")
	directory, downward := t.TempDir(), t.TempDir()
	report := filepath.Join(t.TempDir(), "termination-log")
	if out, err := exec.Command(program(t), "prepare", directory, report).CombinedOutput(); err != nil {
		t.Fatalf("prepare: %v\n%s", err, out)
	}
	key, err := os.ReadFile(report)
	noError(t, err)
	as := handoff.Recipient{Pod: "uid", Job: "job-1", Generation: "1"}
	sender, err := handoff.NewSender()
	noError(t, err)
	sealed, err := sender.Seal(string(key), as, s.handoff(), handoff.MaxAnnotation)
	noError(t, err)
	for name, text := range map[string]string{
		handoff.PodFile: "uid", handoff.JobFile: "job-1", handoff.GenerationFile: "1", handoff.SealedFile: sealed,
	} {
		noError(t, os.WriteFile(filepath.Join(downward, name), []byte(text), 0o600))
	}
	copied, private := filepath.Join(directory, handoff.Program), filepath.Join(directory, handoff.KeyFile)
	args := []string{
		"run", "--handoff", filepath.Join(downward, handoff.SealedFile), "--sender", sender.Public(), "--key", private,
	}

	t.Run("the copied program opens the handoff and runs the job", func(t *testing.T) {
		p := s.start(copied, args...)
		p.exit(runtime.CodeSucceeded)
		s.want(runtime.Succeeded, runtime.Succeeded)
		if _, err := os.Stat(private); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the runner has not removed the key: %v", err)
		}
	})
	t.Run("a second start finds no key and runs nothing", func(t *testing.T) {
		p := s.start(copied, args...)
		p.exit(runtime.CodeUsage)
		if !strings.Contains(p.stderr.String(), "read the key") {
			t.Errorf("the second start printed %q", p.stderr.String())
		}
	})
	t.Run("a handoff that is not sealed needs no key", func(t *testing.T) {
		s := newStory(t, "127.0.0.1", t.TempDir(), "echo hello")
		p := s.start(copied, append([]string{"run"}, s.packed()...)...)
		p.exit(runtime.CodeSucceeded)
		s.want(runtime.Succeeded, runtime.Succeeded)
	})
	t.Run("a handoff that another sender has sealed or packed runs nothing", func(t *testing.T) {
		foreign, err := handoff.NewSender()
		noError(t, err)
		s := newStory(t, "127.0.0.1", t.TempDir(), "echo hello")
		packed := s.packed()
		packed[3] = foreign.Public()
		_, _ = exec.Command(program(t), "key", directory, report).CombinedOutput()
		sealed := slices.Clone(args)
		sealed[4] = foreign.Public()
		for _, args := range [][]string{append([]string{"run"}, packed...), sealed} {
			p := s.start(copied, args...)
			p.exit(runtime.CodeUsage)
			if !strings.Contains(p.stderr.String(), "not signed by the agent that created this Pod") {
				t.Errorf("the runner printed %q", p.stderr.String())
			}
		}
	})
}
