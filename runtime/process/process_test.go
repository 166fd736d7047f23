//go:build linux || darwin

package process_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/process"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scriptRunner creates a working directory whose runner is a shell script.
func scriptRunner(t *testing.T, script string) string {
	t.Helper()
	directory := t.TempDir()
	text := []byte("#!/bin/sh\n" + script + "\n")
	noError(t, os.WriteFile(filepath.Join(directory, "workflow-runner"), text, 0o755))
	return directory
}

// jobIn returns a job for the runner in a working directory.
func jobIn(working string) *runtime.Job {
	return &runtime.Job{
		ID: "job", Agent: "agent", Pool: "pool", Token: secret.New("the-token"),
		Tuning:     runtime.Tuning{Instance: runtime.InstanceSpec{WorkingDirectory: working}},
		Definition: runtimetest.Definition("true"),
	}
}

func start(ctx context.Context, e *process.Executor, job *runtime.Job) (string, error) {
	service := runtimetest.NewService()
	service.Add(job)
	return e.Start(ctx, job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
}

// mustStart starts a job, and removes it at the end of the test.
func mustStart(t *testing.T, e *process.Executor, job *runtime.Job) string {
	t.Helper()
	id, err := start(t.Context(), e, job)
	noError(t, err)
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), id, 0); err != nil {
			t.Error(err)
		}
	})
	return id
}

// startScript starts a job whose runner is a script. It returns the executor, the directory of the
// executor and the id of the job.
func startScript(t *testing.T, script string) (e *process.Executor, directory, id string) {
	t.Helper()
	directory = t.TempDir()
	e = newExecutor(t, directory)
	return e, directory, mustStart(t, e, jobIn(scriptRunner(t, script)))
}

func wait(t *testing.T, e *process.Executor, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := e.Wait(ctx, id)
	noError(t, err)
	return exit
}

func TestNew(t *testing.T) {
	t.Run("directory that others can write to is rejected", func(t *testing.T) {
		directory, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
		noError(t, os.Chmod(directory, 0o777))
		noError(t, os.Symlink(t.TempDir(), link))
		for _, bad := range []string{directory, link} {
			_, err := process.New(process.Options{Directory: bad})
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("%s: %v, want an error that names the directory", bad, err)
			}
		}
	})

	t.Run("directories of stopped creations and removals are removed", func(t *testing.T) {
		directory := t.TempDir()
		for _, name := range []string{"new-1", "old-job-2", "new-3", "old-job-4", "other"} {
			noError(t, os.Mkdir(filepath.Join(directory, name), 0o700))
		}
		past := time.Now().Add(-time.Hour)
		for _, name := range []string{"new-1", "old-job-2", "other"} {
			noError(t, os.Chtimes(filepath.Join(directory, name), past, past))
		}
		left := func() (names []string) {
			entries, err := os.ReadDir(directory)
			noError(t, err)
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			return names
		}

		// While a process creates a directory, only the age counts.
		creating, err := os.Open(directory)
		noError(t, err)
		noError(t, syscall.Flock(int(creating.Fd()), syscall.LOCK_SH))
		newExecutor(t, directory)
		if got := left(); !slices.Equal(got, []string{"new-3", "other"}) {
			t.Errorf("the directories %v are left, want new-3, which is young, and other", got)
		}

		// When that process no longer has the lock, its directory is removed.
		_ = creating.Close()
		newExecutor(t, directory)
		if got := left(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the directories %v are left, want other", got)
		}
	})
}

func TestStart(t *testing.T) {
	t.Run("error about a missing runner has its path and the hint", func(t *testing.T) {
		e := newExecutor(t, t.TempDir())
		notExecutable := scriptRunner(t, "exit 0")
		noError(t, os.Chmod(filepath.Join(notExecutable, "workflow-runner"), 0o644))
		for working, hint := range map[string]string{
			t.TempDir(): "working_directory", notExecutable: "chmod +x",
			runtimetest.ForeignRunner(t, "example.com/vendor"): "another project (example.com/vendor): " +
				"install the workflow-runner of this",
		} {
			_, err := start(t.Context(), e, jobIn(working))
			for _, err := range []error{err, e.Check(t.Context(), jobIn(working).Tuning)} {
				if err == nil || errors.Is(err, runtime.ErrJobFault) ||
					!strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), working) {
					t.Errorf("got %v, want the path and %q, and no fault of the job", err, hint)
				}
			}
		}
	})

	t.Run("job is not started twice", func(t *testing.T) {
		directory := t.TempDir()
		e := newExecutor(t, directory)
		job := jobIn(scriptRunner(t, "cat >/dev/null; exec sleep 600"))
		id := mustStart(t, e, job)
		if second, err := start(t.Context(), e, job); err == nil || second != "" {
			t.Errorf("a second start gives %q, %v; want an error", second, err)
		}
		found, err := e.List(t.Context(), "agent")
		if err != nil || len(found) != 1 || found[0].ID != id || !found[0].Running {
			t.Errorf("after the second start List returns %+v (%v), want the first job, running", found, err)
		}
		if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
			t.Errorf("the directory contains %v (%v), want one job", entries, err)
		}
	})

	t.Run("runner that does not read the handoff fails the start", func(t *testing.T) {
		directory := t.TempDir()
		e := newExecutor(t, directory)
		job := jobIn(scriptRunner(t, "echo no such library >&2; exit 127"))
		job.Definition.Raw = []byte(`"` + strings.Repeat("x", 1<<20) + `"`) // larger than a pipe
		if _, err := start(t.Context(), e, job); err == nil || !strings.Contains(err.Error(), "no such library") {
			t.Errorf("got %v, want the message of the runner", err)
		}
		job.Tuning.Instance.WorkingDirectory = scriptRunner(t, "exec sleep 600")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no time left"))
		defer cancel()
		if _, err := start(ctx, e, job); err == nil || !strings.Contains(err.Error(), "no time left") {
			t.Errorf("got %v, want the cause of the context", err)
		}
		if entries, err := os.ReadDir(directory); err != nil || len(entries) > 0 {
			t.Errorf("left: %v (%v), want nothing", entries, err)
		}
	})

	t.Run("job trusts the certificates of the agent", func(t *testing.T) {
		service := runtimetest.NewService()
		job := jobIn(runtimetest.Runner(t))
		job.Service, job.Tuning.CA = runtimetest.ServeTLS(t, "127.0.0.1", service)
		job.Definition = runtimetest.Definition(`grep -c BEGIN "$NODE_EXTRA_CA_CERTS"; echo "in $SSL_CERT_FILE"`)
		service.Add(job)
		e := newExecutor(t, t.TempDir())
		id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.BaseHandoff(job)))
		noError(t, err)
		if exit := wait(t, e, id); exit.Code != runtime.CodeSucceeded {
			t.Errorf("the runner ended with %+v, want success", exit)
		}
		if log := service.Record(job.ID).Text(1); !strings.Contains(log, "\n1\nin ") || !strings.Contains(log, id) {
			t.Errorf("the log of the step is\n%s\nwant one certificate in a file of the job's directory", log)
		}
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
	})
}

func TestCheck(t *testing.T) {
	working := jobIn(scriptRunner(t, "exit 0")).Tuning
	t.Run("removed directory for jobs is created again", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), "jobs")
		e := newExecutor(t, directory)
		noError(t, os.Remove(directory))
		if err := e.Check(t.Context(), working); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(directory); err != nil {
			t.Error(err)
		}
	})
	t.Run("file in place of the directory for jobs", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), "jobs")
		e := newExecutor(t, directory)
		noError(t, os.Remove(directory))
		noError(t, os.WriteFile(directory, nil, 0o600))
		if err := e.Check(t.Context(), working); err == nil || !strings.Contains(err.Error(), directory) {
			t.Errorf("checking gives %v, want an error that names the directory", err)
		}
	})
}

func TestWait(t *testing.T) {
	t.Run("message of a runner that cannot run is the reason", func(t *testing.T) {
		e, _, id := startScript(t, "cat >/dev/null; echo wrong release >&2; exit 13")
		if exit := wait(t, e, id); exit.Code != runtime.CodeUsage || exit.Reason != "wrong release" {
			t.Errorf("it ended with %+v, want code %d and the message of the runner", exit, runtime.CodeUsage)
		}
	})

	t.Run("signal that ended the runner is the reason", func(t *testing.T) {
		e, _, id := startScript(t, "cat >/dev/null; kill -KILL $$")
		if exit := wait(t, e, id); exit.Code != 137 || !strings.Contains(exit.Reason, "SIGKILL") {
			t.Errorf("it ended with %+v, want code 137 by SIGKILL", exit)
		}
	})

	t.Run("lost exit code is reported as unknown", func(t *testing.T) {
		e, directory, id := startScript(t, `cat >/dev/null; echo '{"step":1}'; kill -KILL $PPID; exec sleep 600`)
		if exit := wait(t, e, id); exit.Code >= 0 || exit.Reason == "" {
			t.Errorf("it ended with %+v, want a negative code and a reason", exit)
		}
		found, err := newExecutor(t, directory).List(t.Context(), "agent")
		if err != nil || len(found) != 1 || found[0].Running || found[0].Ended.IsZero() {
			t.Errorf("a restarted agent finds %+v (%v), want it ended at a known time", found, err)
		}
	})
}

func TestRemove(t *testing.T) {
	t.Run("reused process id is not touched", func(t *testing.T) {
		e, directory, id := startScript(t, "cat >/dev/null; exit 0")
		wait(t, e, id)

		// The state of the machine after a reboot: there is no exit code, and a process of
		// another program that leads a session has the process id.
		foreign := &syscall.SysProcAttr{Setsid: true}
		sleeper, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{Sys: foreign})
		noError(t, err)
		defer func() {
			_ = sleeper.Kill()
			_, _ = sleeper.Wait()
		}()
		home := filepath.Join(directory, id)
		noError(t, os.Remove(filepath.Join(home, "exit")))
		text := []byte(`{"pid":` + strconv.Itoa(sleeper.Pid) + `,"stamp":"another"}`)
		noError(t, os.WriteFile(filepath.Join(home, "leader.json"), text, 0o600))

		again := newExecutor(t, directory)
		if exit := wait(t, again, id); exit.Code >= 0 {
			t.Errorf("it ended with %+v, want an unknown end", exit)
		}
		noError(t, again.Remove(t.Context(), id, time.Second))
		if err := sleeper.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the foreign process has ended: %v", err)
		}
	})

	t.Run("process outside the session is found by its environment", func(t *testing.T) {
		ready := filepath.Join(t.TempDir(), "ready")
		e, directory, id := startScript(t, "cat >/dev/null; setsid sh -c 'echo >"+ready+"; sleep 600' & "+
			"while [ ! -e "+ready+" ]; do sleep 0.01; done; exit 0")
		wait(t, e, id)
		runaway := func() (pids []string) {
			for _, p := range processes(t) {
				if strings.Contains(p, "sleep 600") && strings.Contains(p, filepath.Join(directory, id)) {
					pids = append(pids, p)
				}
			}
			return pids
		}
		if len(runaway()) == 0 {
			t.Fatal("no process has left the session: the test proves nothing (setsid is in the package util-linux)")
		}
		noError(t, e.Remove(t.Context(), id, 0))
		if left := runaway(); len(left) > 0 {
			t.Errorf("left: %.200q, want nothing", left)
		}
	})

	t.Run("process without environment is found by its session", func(t *testing.T) {
		pidFile := filepath.Join(t.TempDir(), "pid")
		e, _, id := startScript(t,
			"cat >/dev/null; env -i /bin/sleep 600 & echo $! >"+pidFile+"; echo started; exec sleep 600")
		stream, err := e.Follow(t.Context(), id)
		noError(t, err)
		defer stream.Close()
		_, err = io.ReadFull(stream, make([]byte, len("started\n")))
		noError(t, err)
		text, err := os.ReadFile(pidFile)
		noError(t, err)
		pid := strings.TrimSpace(string(text))
		alive := func() bool {
			return slices.ContainsFunc(processes(t), func(p string) bool {
				return strings.HasPrefix(strings.TrimSpace(p), pid+" ") && !strings.Contains(p, "defunct")
			})
		}
		if !alive() {
			t.Fatal("the process without environment does not run: the test proves nothing")
		}
		noError(t, e.Remove(t.Context(), id, 0))
		if alive() {
			t.Errorf("process %s is left", pid)
		}
	})

	t.Run("read-only directories are removed", func(t *testing.T) {
		e, directory, id := startScript(t,
			`cat >/dev/null; mkdir -p "$HOME/mod/cache"; echo x >"$HOME/mod/cache/x"; chmod -R a-w "$HOME/mod"`)
		if exit := wait(t, e, id); exit.Code != 0 {
			t.Fatalf("the job ended with %+v, want code 0", exit)
		}
		if err := e.Remove(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(directory); err != nil || len(entries) > 0 {
			t.Errorf("left: %v (%v), want nothing", entries, err)
		}
	})

	t.Run("calls of Wait get the exit code during a removal", func(t *testing.T) {
		e, _, id := startScript(t,
			`trap 'exit 10' TERM; cat >/dev/null; echo '{"step":1}'; while :; do sleep 600 & wait $!; done`)
		stream, err := e.Follow(t.Context(), id)
		noError(t, err)
		defer stream.Close()
		_, err = io.ReadFull(stream, make([]byte, 1))
		noError(t, err)
		exits := make(chan runtime.Exit, 20)
		for range cap(exits) {
			go func() {
				exit, err := e.Wait(context.Background(), id)
				if err != nil {
					exit.Reason = err.Error()
				}
				exits <- exit
			}()
		}
		noError(t, e.Remove(t.Context(), id, 30*time.Second))
		for range cap(exits) {
			// A call that began late may find no instance, but must not return a wrong code.
			if exit := <-exits; exit.Code != 10 && !strings.Contains(exit.Reason, runtime.ErrNoInstance.Error()) {
				t.Errorf("a waiting call returns %+v, want code 10", exit)
			}
		}
		if text, err := io.ReadAll(stream); err != nil {
			t.Errorf("the stream ends with %q, %v; want no error", text, err)
		}
	})
}

func TestFollow(t *testing.T) {
	first, second := newFIFO(t), newFIFO(t) // one may still be open for reading when the other is written
	e, _, id := startScript(t,
		"cat >/dev/null; read line <"+first+"; echo $line; read line <"+second+"; echo $line")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := e.Follow(ctx, id)
	noError(t, err)
	defer stream.Close()

	// The runner ends after the second line, so the first one is read while it runs.
	for _, fifo := range []string{first, second} {
		const want = "hello\n"
		release(t, fifo, want)
		line := make([]byte, len(want))
		if _, err := io.ReadFull(stream, line); err != nil || string(line) != want {
			t.Fatalf("read %q, %v; want %q", line, err, want)
		}
	}
}

// newFIFO creates a named pipe for a script that waits for the test, and returns its path.
func newFIFO(t *testing.T) string {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "fifo")
	noError(t, syscall.Mkfifo(fifo, 0o600))
	return fifo
}

// release blocks until a script reads from the named pipe, and writes the text to it.
func release(t *testing.T, fifo, text string) {
	t.Helper()
	pipe, err := os.OpenFile(fifo, os.O_WRONLY, 0) // blocks until the script reads
	noError(t, err)
	_, err = pipe.WriteString(text)
	noError(t, errors.Join(err, pipe.Close()))
}

func TestSweep(t *testing.T) {
	directory := t.TempDir()
	e, err := process.New(process.Options{Agent: "own", Directory: directory})
	noError(t, err)
	weekAgo := time.Now().Add(-8 * 24 * time.Hour)
	made := func(agent, name, script string, ended time.Time) string {
		job := jobIn(scriptRunner(t, "cat >/dev/null; "+script))
		job.Agent, job.ID = agent, name
		id := mustStart(t, e, job)
		if !ended.IsZero() {
			wait(t, e, id)
			noError(t, os.Chtimes(filepath.Join(directory, id, "exit"), ended, ended))
		}
		return filepath.Join(directory, id)
	}
	stays := map[string]bool{
		made("another", "long-ago", "exit 0", weekAgo):            false,
		made("another", "just-now", "exit 0", time.Now()):         true,
		made("another", "running", "exec sleep 600", time.Time{}): true,
		made("own", "of-the-pool", "exit 0", weekAgo):             true,
	}
	halfMade := filepath.Join(directory, "new-1")
	noError(t, os.Mkdir(halfMade, 0o700))
	noError(t, os.Chtimes(halfMade, weekAgo, weekAgo))
	stays[halfMade] = false
	removed, err := e.Sweep(t.Context(), nil)
	if err != nil || len(removed) != 2 {
		t.Errorf("removed %q, %v, want two directories", removed, err)
	}
	for path, want := range stays {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s after the sweep: %v, want the directory to stay: %v", path, err, want)
		}
	}
}
