//go:build linux || darwin

package process_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
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

// pretend makes a working directory whose runner is a shell script.
func pretend(t *testing.T, script string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "workflow-runner"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// jobIn makes a job that is run by the runner in a working directory.
func jobIn(working string) *runtime.Job {
	return &runtime.Job{
		ID: "job", Agent: "agent", Pool: "pool", Token: secret.New("the-token"),
		Tuning:     runtime.Tuning{Place: runtime.Place{WorkingDirectory: working}},
		Definition: runtimetest.Definition("true"),
	}
}

func start(ctx context.Context, e *process.Executor, job *runtime.Job) (string, error) {
	service := runtimetest.NewService()
	service.Add(job)
	return e.Start(ctx, job, runtime.NewSetup(job, service, runtimetest.Offer(job)))
}

// mustStart starts a job, and removes it when the test is over.
func mustStart(t *testing.T, e *process.Executor, job *runtime.Job) string {
	t.Helper()
	id, err := start(t.Context(), e, job)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), id, 0); err != nil {
			t.Error(err)
		}
	})
	return id
}

func wait(t *testing.T, e *process.Executor, id string) runtime.Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := e.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return exit
}

func TestItSaysOnceThatItIsolatesNothing(t *testing.T) {
	var log bytes.Buffer
	_, err := process.New(process.Options{Folder: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, "isolates") {
		t.Errorf("the log is %q, want one warning", text)
	}
}

func TestAFolderThatOthersCanWriteToIsRefused(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{folder, link} {
		if _, err := process.New(process.Options{Folder: bad, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v, want an error that names it", bad, err)
		}
	}
}

func TestAMissingRunnerIsNamedWithItsCure(t *testing.T) {
	e := open(t, t.TempDir())
	locked := pretend(t, "exit 0")
	if err := os.Chmod(filepath.Join(locked, "workflow-runner"), 0o644); err != nil {
		t.Fatal(err)
	}
	for working, cure := range map[string]string{t.TempDir(): "working_directory", locked: "chmod +x"} {
		_, err := start(t.Context(), e, jobIn(working))
		for _, err := range []error{err, e.Check(t.Context(), jobIn(working).Tuning)} {
			if err == nil || errors.Is(err, runtime.ErrJob) || !strings.Contains(err.Error(), cure) || !strings.Contains(err.Error(), working) {
				t.Errorf("got %v, want the path and %q, and no failure of the job's own", err, cure)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	working := jobIn(pretend(t, "exit 0")).Tuning
	t.Run("removed folder for jobs is made again", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "jobs")
		e := open(t, folder)
		if err := os.Remove(folder); err != nil {
			t.Fatal(err)
		}
		if err := e.Check(t.Context(), working); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(folder); err != nil {
			t.Error(err)
		}
	})
	t.Run("file in place of the folder for jobs", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "jobs")
		e := open(t, folder)
		if err := errors.Join(os.Remove(folder), os.WriteFile(folder, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := e.Check(t.Context(), working); err == nil || !strings.Contains(err.Error(), folder) {
			t.Errorf("checking gives %v, want an error that names the folder", err)
		}
	})
}

func TestAJobIsNotStartedTwice(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	job := jobIn(pretend(t, "cat >/dev/null; exec sleep 600"))
	id := mustStart(t, e, job)
	if second, err := start(t.Context(), e, job); err == nil || second != "" {
		t.Errorf("a second start gives %q, %v; want an error", second, err)
	}
	found, err := e.List(t.Context(), "agent")
	if err != nil || len(found) != 1 || found[0].ID != id || !found[0].Running {
		t.Errorf("after that there is %+v (%v), want the first, running", found, err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 1 {
		t.Errorf("in the folder is %v (%v), want the one job", entries, err)
	}
}

func TestARunnerThatCannotRunSaysWhy(t *testing.T) {
	e := open(t, t.TempDir())
	id := mustStart(t, e, jobIn(pretend(t, "cat >/dev/null; echo wrong release >&2; exit 13")))
	if exit := wait(t, e, id); exit.Code != runtime.CodeUsage || exit.Reason != "wrong release" {
		t.Errorf("it ended with %+v, want code %d and the runner's words", exit, runtime.CodeUsage)
	}
}

func TestARunnerThatWillNotReadFailsTheStart(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	job := jobIn(pretend(t, "echo no such library >&2; exit 127"))
	job.Definition.Raw = []byte(`"` + strings.Repeat("x", 1<<20) + `"`) // more than a pipe holds
	if _, err := start(t.Context(), e, job); err == nil || !strings.Contains(err.Error(), "no such library") {
		t.Errorf("got %v, want the runner's words", err)
	}
	job.Tuning.Place.WorkingDirectory = pretend(t, "exec sleep 600")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no patience"))
	defer cancel()
	if _, err := start(ctx, e, job); err == nil || !strings.Contains(err.Error(), "no patience") {
		t.Errorf("got %v, want the cause", err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("left are %v (%v), want nothing", entries, err)
	}
}

func TestARunnerEndedByASignalIsTold(t *testing.T) {
	e := open(t, t.TempDir())
	id := mustStart(t, e, jobIn(pretend(t, "cat >/dev/null; kill -KILL $$")))
	if exit := wait(t, e, id); exit.Code != 137 || !strings.Contains(exit.Reason, "SIGKILL") {
		t.Errorf("it ended with %+v, want code 137 by SIGKILL", exit)
	}
}

func TestALostExitCodeIsAdmitted(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	id := mustStart(t, e, jobIn(pretend(t, `cat >/dev/null; echo '{"step":1}'; kill -KILL $PPID; exec sleep 600`)))
	if exit := wait(t, e, id); exit.Code >= 0 || exit.Reason == "" {
		t.Errorf("it ended with %+v, want a negative code and a reason", exit)
	}
	found, err := open(t, folder).List(t.Context(), "agent")
	if err != nil || len(found) != 1 || found[0].Running || found[0].Ended.IsZero() {
		t.Errorf("a restarted agent finds %+v (%v), want it ended at a known time", found, err)
	}
}

func TestARecycledProcessIDIsNotTouched(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	id := mustStart(t, e, jobIn(pretend(t, "cat >/dev/null; exit 0")))
	wait(t, e, id)

	// What the machine looks like after a restart: no exit code was written, and
	// the process id belongs to somebody who leads a session of his own.
	stranger := &syscall.SysProcAttr{Setsid: true}
	sleeper, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{Sys: stranger})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Kill()
		_, _ = sleeper.Wait()
	}()
	home := filepath.Join(folder, id)
	if err := os.Remove(filepath.Join(home, "exit")); err != nil {
		t.Fatal(err)
	}
	text := []byte(`{"pid":` + strconv.Itoa(sleeper.Pid) + `,"stamp":"another"}`)
	if err := os.WriteFile(filepath.Join(home, "leader.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}

	again := open(t, folder)
	if exit := wait(t, again, id); exit.Code >= 0 {
		t.Errorf("it ended with %+v, want an unknown end", exit)
	}
	if err := again.Remove(t.Context(), id, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger is dead: %v", err)
	}
}

func TestAProcessThatLeftTheSessionIsFoundByItsMark(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	job := jobIn(pretend(t, "cat >/dev/null; setsid sleep 600 & exit 0"))
	id := mustStart(t, e, job)
	wait(t, e, id)
	runaway := func() (pids []string) {
		for _, p := range processes(t) {
			if strings.Contains(p, "sleep 600") && strings.Contains(p, filepath.Join(folder, id)) {
				pids = append(pids, p)
			}
		}
		return pids
	}
	if len(runaway()) == 0 {
		t.Fatal("nothing has run away, so nothing is proved (setsid is in the package util-linux)")
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if left := runaway(); len(left) > 0 {
		t.Errorf("left is %.200q", left)
	}
}

func TestAProcessThatClearedItsEnvironmentIsFoundByItsSession(t *testing.T) {
	e := open(t, t.TempDir())
	pidFile := filepath.Join(t.TempDir(), "pid")
	job := jobIn(pretend(t, "cat >/dev/null; env -i /bin/sleep 600 & echo $! >"+pidFile+"; echo started; exec sleep 600"))
	id := mustStart(t, e, job)
	stream, err := e.Follow(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := io.ReadFull(stream, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(text))
	alive := func() bool {
		return slices.ContainsFunc(processes(t), func(p string) bool {
			return strings.HasPrefix(strings.TrimSpace(p), pid+" ") && !strings.Contains(p, "defunct")
		})
	}
	if !alive() {
		t.Fatal("the process that hides is not there, so nothing is proved")
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if alive() {
		t.Errorf("process %s is left", pid)
	}
}

func TestReadOnlyDirectoriesAreRemoved(t *testing.T) {
	folder := t.TempDir()
	e := open(t, folder)
	id := mustStart(t, e, jobIn(pretend(t, `cat >/dev/null; mkdir -p "$HOME/mod/cache"; echo x >"$HOME/mod/cache/x"; chmod -R a-w "$HOME/mod"`)))
	if exit := wait(t, e, id); exit.Code != 0 {
		t.Fatalf("it ended with %+v", exit)
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("left are %v (%v), want nothing", entries, err)
	}
}

func TestWhoWaitsIsToldTheRealEndOfAJobThatIsRemoved(t *testing.T) {
	e := open(t, t.TempDir())
	id := mustStart(t, e, jobIn(pretend(t, `trap 'exit 10' TERM; cat >/dev/null; echo '{"step":1}'; while :; do sleep 600 & wait $!; done`)))
	stream, err := e.Follow(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := io.ReadFull(stream, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
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
	if err := e.Remove(t.Context(), id, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	for range cap(exits) {
		// One that began to wait only now may find nothing, but never a wrong code.
		if exit := <-exits; exit.Code != 10 && !strings.Contains(exit.Reason, runtime.ErrNoEnvironment.Error()) {
			t.Errorf("one who waits is told %+v, want code 10", exit)
		}
	}
	if rest, err := io.ReadAll(stream); err != nil {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
}

func TestProgressIsSeenSoonAfterItIsSaid(t *testing.T) {
	e := open(t, t.TempDir())
	fifo := filepath.Join(t.TempDir(), "now")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	id := mustStart(t, e, jobIn(pretend(t, "cat >/dev/null; read word <"+fifo+"; echo $word")))
	stream, err := e.Follow(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	gate, err := os.OpenFile(fifo, os.O_WRONLY, 0) // blocks until the runner reads
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := gate.WriteString("hello\n"); err != nil {
		t.Fatal(err)
	}
	_ = gate.Close()
	said := make([]byte, 6)
	if _, err := io.ReadFull(stream, said); err != nil || string(said) != "hello\n" {
		t.Fatalf("read %q, %v", said, err)
	}
	took := time.Since(begin)
	t.Logf("seen after %v", took)
	if took > 500*time.Millisecond { // 20 ms on a quiet machine
		t.Errorf("it took %v to see a line", took)
	}
}

func TestHalfMadeFoldersAreSweptWhenTheyAreOld(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"new-1", "old-job-2", "new-3", "other"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	for _, name := range []string{"new-1", "old-job-2", "other"} {
		if err := os.Chtimes(filepath.Join(folder, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	open(t, folder)
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 2 || entries[0].Name() != "new-3" || entries[1].Name() != "other" {
		t.Errorf("left are %v (%v), want new-3, which is young, and other, which is not ours", entries, err)
	}
}

func TestSweep(t *testing.T) {
	folder := t.TempDir()
	e, err := process.New(process.Options{Agent: "own", Folder: folder, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	weekAgo := time.Now().Add(-8 * 24 * time.Hour)
	made := func(agent, name, script string, ended time.Time) string {
		job := jobIn(pretend(t, "cat >/dev/null; "+script))
		job.Agent, job.ID = agent, name
		id := mustStart(t, e, job)
		if !ended.IsZero() {
			wait(t, e, id)
			if err := os.Chtimes(filepath.Join(folder, id, "exit"), ended, ended); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Join(folder, id)
	}
	stays := map[string]bool{
		made("another", "long-ago", "exit 0", weekAgo):            false,
		made("another", "just-now", "exit 0", time.Now()):         true,
		made("another", "running", "exec sleep 600", time.Time{}): true,
		made("own", "of-the-pool", "exit 0", weekAgo):             true,
	}
	halfMade := filepath.Join(folder, "new-1")
	if err := errors.Join(os.Mkdir(halfMade, 0o700), os.Chtimes(halfMade, weekAgo, weekAgo)); err != nil {
		t.Fatal(err)
	}
	stays[halfMade] = false
	removed, err := e.Sweep(t.Context(), nil)
	if err != nil || len(removed) != 2 {
		t.Errorf("removed %q, %v", removed, err)
	}
	for path, want := range stays {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it to stay: %v", path, err, want)
		}
	}
}

func TestAJobTrustsTheAgentsCertificates(t *testing.T) {
	service := runtimetest.NewService()
	job := jobIn(runtimetest.Runner(t))
	job.Service, job.Tuning.CA = runtimetest.ServeTLS(t, "127.0.0.1", service)
	job.Definition = runtimetest.Definition(`grep -c BEGIN "$NODE_EXTRA_CA_CERTS"; echo "in $SSL_CERT_FILE"`)
	service.Add(job)
	e := open(t, t.TempDir())
	id, err := e.Start(t.Context(), job, runtime.NewSetup(job, service, runtimetest.Offer(job)))
	if err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, e, id); exit.Code != runtime.CodeSucceeded {
		t.Errorf("the runner ended with %+v", exit)
	}
	if log := service.Record(job.ID).Text(1); !strings.Contains(log, "\n1\nin ") || !strings.Contains(log, id) {
		t.Errorf("the step says\n%s", log)
	}
	if err := e.Remove(t.Context(), id, 0); err != nil {
		t.Error(err)
	}
}
