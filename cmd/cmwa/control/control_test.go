package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// fakeLoop is a stateful fake of the loop of an [Agent].
type fakeLoop struct {
	mu       sync.Mutex
	pools    map[string]int // number of running jobs by pool
	paused   map[string]bool
	stopping bool
	stopped  []string // ids of jobs
}

func newFakeLoop(names ...string) *fakeLoop {
	l := &fakeLoop{pools: map[string]int{}, paused: map[string]bool{}}
	for i, name := range names {
		l.pools[name] = i
	}
	return l
}

func (l *fakeLoop) Status() reconcile.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := reconcile.Status{Names: map[string]string{}, Paused: map[string]bool{}, Stopping: l.stopping,
		Process: reconcile.ProcessSpec{ShutdownTimeout: time.Hour}}
	for name := range l.paused {
		s.Paused[name] = true
	}
	for name, jobs := range l.pools {
		s.Names[name+"-key"] = name
		pool := runtime.PoolState{Spec: runtime.PoolSpec{Name: name}, Phase: runtime.PoolPolling}
		for i := range jobs {
			pool.Jobs = append(pool.Jobs, runtime.JobState{
				ID: fmt.Sprintf("%s-%d", name, i), WorkflowID: fmt.Sprintf("deployment-%s-%d", name, i),
				Work: runtime.Work{Project: "web", Stack: name},
			})
		}
		s.Pools = append(s.Pools, pool)
	}
	return s
}

func (l *fakeLoop) Pause(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.paused[name]
	l.paused[name] = true
	return !was
}

func (l *fakeLoop) Resume(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.paused[name]
	delete(l.paused, name)
	return was
}

func (l *fakeLoop) StopJob(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = append(l.stopped, id)
	return true
}

func (l *fakeLoop) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopping = true
}

// discard is a log without output.
var discard = slog.New(slog.DiscardHandler)

// serving serves the socket of an agent with this directory until the test ends or end is
// called.
func serving(t *testing.T, directory string, loop *fakeLoop) (end func()) {
	t.Helper()
	server, err := Listen(directory, discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	agent := Agent{Directory: directory, Started: time.Now(), Loop: loop, Drain: loop.drain}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, agent.Handle) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// connect connects to the socket of a directory until the test ends.
func connect(t *testing.T, directory string) *net.UnixConn {
	t.Helper()
	at, release, err := address(directory)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	conn, err := net.DialUnix("unix", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call sends a request, which the agent must accept, and returns the response.
func call(t *testing.T, directory string, command Command, pool string) Response {
	t.Helper()
	response, err := Call(t.Context(), directory, Request{Command: command, Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// raw sends bytes to the socket of a directory, and returns the whole response.
func raw(t *testing.T, directory, text string) string {
	t.Helper()
	conn := connect(t, directory)
	defer conn.Close()
	_, _ = io.WriteString(conn, text) // the agent may have closed the connection already
	_ = conn.CloseWrite()
	response, _ := io.ReadAll(conn)
	return string(response)
}

func TestHandle(t *testing.T) {
	t.Run("pause and resume change one pool, once, and are stored", func(t *testing.T) {
		directory, loop := t.TempDir(), newFakeLoop("blue", "green", "red")
		serving(t, directory, loop)
		for i, want := range []bool{true, false} {
			if r := call(t, directory, Pause, "red"); r.Changed != want || r.Jobs("red") != 2 || !loop.paused["red"] {
				t.Errorf("pause %d: %+v", i, r)
			}
		}
		call(t, directory, Pause, "blue")
		if names, err := ReadPaused(directory); err != nil || !slices.Equal(names, []string{"blue", "red"}) {
			t.Errorf("the stored names are %v, %v", names, err)
		}
		restored := newFakeLoop("blue", "green", "red")
		Restore(Agent{Directory: directory, Loop: restored}, nil, discard)
		if len(restored.paused) != 2 || !restored.paused["blue"] || !restored.paused["red"] {
			t.Errorf("after a restart the paused pools are %v", restored.paused)
		}
		for i, want := range []bool{true, false} {
			if r := call(t, directory, Resume, "red"); r.Changed != want || loop.paused["red"] {
				t.Errorf("resume %d: %+v", i, r)
			}
		}
		call(t, directory, Resume, "blue")
		if entries, err := os.ReadDir(directory); err != nil || len(entries) != 1 {
			t.Errorf("without a paused pool the directory has %v, %v; want the socket only", entries, err)
		}
	})

	t.Run("the error for an unknown pool has the closest name and the list of pools", func(t *testing.T) {
		directory, loop := t.TempDir(), newFakeLoop("blue", "green")
		serving(t, directory, loop)
		for name, want := range map[string]string{
			"bleu":      "no pool bleu: did you mean blue? (pools: blue, green)",
			"xyzzy":     "no pool xyzzy (pools: blue, green)",
			"a\x1b[2Jb": `no pool "a\x1b[2Jb" (pools: blue, green)`,
		} {
			_, err := Call(t.Context(), directory, Request{Command: Pause, Pool: name})
			if err == nil || err.Error() != want || len(loop.paused) > 0 {
				t.Errorf("%q: %v, want %s", name, err, want)
			}
		}
		loop.paused["old"] = true // its pool is no longer configured
		if r := call(t, directory, Resume, "old"); !r.Changed {
			t.Errorf("%+v", r)
		}
	})

	t.Run("stop finds one job by its id, or by that of its deployment, or by the beginning of one", func(t *testing.T) {
		directory, loop := t.TempDir(), newFakeLoop("blue", "green", "red")
		serving(t, directory, loop)
		for _, id := range []string{"green-0", "red-1", "deployment-red-0", "deployment-gr…"} {
			r, err := Call(t.Context(), directory, Request{Command: Stop, Job: id})
			if err != nil || !r.Changed || !strings.HasPrefix(r.Job, "web/") {
				t.Errorf("%q: %+v, %v", id, r, err)
			}
		}
		if want := []string{"green-0", "red-1", "red-0", "green-0"}; !slices.Equal(loop.stopped, want) {
			t.Errorf("the jobs %v were stopped, want %v", loop.stopped, want)
		}
		for id, want := range map[string]string{
			"red":        "2 jobs have an id that begins with red: give the whole id of the job",
			"blue-0":     "there is no job blue-0: cmwa jobs list has the jobs",
			"\x1b[2Jred": `there is no job "\x1b[2Jred": cmwa jobs list has the jobs`,
			"":           "stop needs the id of a job",
			"…":          "there is no job …: cmwa jobs list has the jobs",
		} {
			_, err := Call(t.Context(), directory, Request{Command: Stop, Job: id})
			if err == nil || err.Error() != want {
				t.Errorf("%q: %v, want %s", id, err, want)
			}
		}
		if len(loop.stopped) != 4 {
			t.Errorf("the jobs %v were stopped", loop.stopped)
		}
	})

	t.Run("drain stops the agent once", func(t *testing.T) {
		directory, loop := t.TempDir(), newFakeLoop("blue", "green", "red")
		serving(t, directory, loop)
		for i, want := range []bool{true, false} {
			r := call(t, directory, Drain, "")
			if r.Changed != want || r.Jobs("") != 3 || !loop.stopping {
				t.Errorf("drain %d: %+v", i, r)
			}
			if left := time.Until(r.StopAt); want && (left < 59*time.Minute || left > time.Hour) {
				t.Errorf("jobs may run for %s, want an hour", left)
			}
		}
	})

	t.Run("a pause that cannot be stored takes effect, with a warning", func(t *testing.T) {
		loop := newFakeLoop("blue")
		agent := Agent{Directory: filepath.Join(t.TempDir(), "missing"), Loop: loop}
		r := agent.Handle(Request{Command: Pause, Pool: "blue"})
		if r.Error != "" || !r.Changed || !loop.paused["blue"] || !strings.Contains(r.Warning, "cannot be stored") {
			t.Errorf("%+v", r)
		}

		// The same command stores the pause when that is possible.
		if err := os.Mkdir(agent.Directory, 0o700); err != nil {
			t.Fatal(err)
		}
		r = agent.Handle(Request{Command: Pause, Pool: "blue"})
		if names, err := ReadPaused(agent.Directory); r.Changed || r.Warning != "" || err != nil ||
			!slices.Equal(names, []string{"blue"}) {
			t.Errorf("%+v; the stored names are %v, %v", r, names, err)
		}
	})
}

func TestListen(t *testing.T) {
	t.Run("socket is for its owner only, and removed at the end", func(t *testing.T) {
		directory := t.TempDir()
		end := serving(t, directory, newFakeLoop())
		path := filepath.Join(directory, socketName)
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket is %v (%v), want mode 0600", info, err)
		}
		end()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the end of the agent, the error of Lstat is %v, want ErrNotExist", err)
		}
		if _, err := Call(t.Context(), directory, Request{Command: Show}); !errors.Is(err, errNoAgent) {
			t.Errorf("after the end of the agent, the error of Call is %v, want errNoAgent", err)
		}
	})

	t.Run("socket of an agent that has ended is replaced", func(t *testing.T) {
		directory := t.TempDir()
		dead, err := listen(directory)
		if err != nil {
			t.Fatal(err)
		}
		_ = dead.Close() // leaves the file, as a killed agent does
		if _, err := Call(t.Context(), directory, Request{Command: Show}); !errors.Is(err, errNoAgent) {
			t.Errorf("before the next agent starts, the error of Call is %v, want errNoAgent", err)
		}
		serving(t, directory, newFakeLoop("blue"))
		if r := call(t, directory, Show, ""); len(r.Pools) != 1 {
			t.Errorf("%+v", r)
		}
	})

	t.Run("path that is too long for the kernel works, or is an error without /proc", func(t *testing.T) {
		directory := filepath.Join(t.TempDir(), strings.Repeat("long/", 30), strings.Repeat("n", 200))
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/proc/self/fd"); err != nil {
			if _, err := Listen(directory, discard); err == nil || !strings.Contains(err.Error(), "state_directory") {
				t.Errorf("without /proc: %v", err)
			}
			return
		}
		end := serving(t, directory, newFakeLoop("blue"))
		if r := call(t, directory, Pause, "blue"); !r.Changed {
			t.Errorf("%+v", r)
		}
		end()
		if _, err := os.Lstat(filepath.Join(directory, socketName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the end of the agent, the error of Lstat is %v, want ErrNotExist", err)
		}
	})

	t.Run("without a socket Open returns no error, and it keeps a file that is no socket", func(t *testing.T) {
		directory := t.TempDir()
		path := filepath.Join(directory, socketName)
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, unusable := range []string{directory, "", filepath.Join(directory, "missing")} {
			var log bytes.Buffer
			serve, warning := Open(Agent{Directory: unusable}, slog.New(slog.NewTextHandler(&log, nil)))
			if err := serve(t.Context()); err != nil || !strings.HasPrefix(warning, "no control socket") ||
				!strings.Contains(log.String(), "no control socket") {
				t.Errorf("%q: %v, the log is %s", unusable, err, log.String())
			}
			if warned := strings.Contains(log.String(), "level=WARN"); warned != (unusable != "") {
				t.Errorf("%q: the log is %s, want a warning only for an unusable directory", unusable, log.String())
			}
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
			t.Errorf("the file has %q, %v", text, err)
		}
	})
}

func TestServe(t *testing.T) {
	t.Run("invalid requests are refused, and a valid request after them is served", func(t *testing.T) {
		directory, loop := t.TempDir(), newFakeLoop("blue")
		serving(t, directory, loop)
		for name, request := range map[string]string{
			"nothing":         "",
			"no end of line":  `{"version":1,"command":"drain"}`,
			"no JSON":         "GET / HTTP/1.1\n",
			"an array":        "[]\n",
			"no version":      `{"command":"drain"}` + "\n",
			"other version":   `{"version":2,"command":"drain"}` + "\n",
			"no command":      `{"version":1}` + "\n",
			"unknown command": `{"version":1,"command":"kill"}` + "\n",
			"no pool":         `{"version":1,"command":"pause"}` + "\n",
			"too long":        `{"version":1,"command":"drain","pool":"` + strings.Repeat("a", maxRequest) + "\"}\n",
			"endless":         strings.Repeat("a", 1<<20),
			"deep":            strings.Repeat("[", maxRequest-1) + "\n",
		} {
			if response := raw(t, directory, request); strings.Contains(response, `"changed":true`) {
				t.Errorf("%s: %s", name, response)
			}
		}
		if loop.stopping || len(loop.paused) > 0 {
			t.Error("a refused request had an effect")
		}
		if got := raw(t, directory, `{"version":7,"command":"drain"}`+"\n"); !strings.Contains(got, "version 7") {
			t.Errorf("the refusal of another version is %s", got)
		}
		call(t, directory, Show, "")
	})

	t.Run("calls succeed while silent connections use all but one of the connections", func(t *testing.T) {
		directory := t.TempDir()
		serving(t, directory, newFakeLoop("blue"))
		at, release, err := address(directory)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		for range maxConnections - 1 {
			conn, err := net.DialUnix("unix", nil, at)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if _, err := Call(t.Context(), directory, Request{Command: Show}); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	})

	t.Run("end of the agent closes idle connections at once", func(t *testing.T) {
		directory := t.TempDir()
		end := serving(t, directory, newFakeLoop("blue"))
		connect(t, directory)
		started := time.Now()
		end()
		if took := time.Since(started); took > time.Second {
			t.Errorf("an idle connection delays the end by %s", took)
		}
	})
}

func TestWait(t *testing.T) {
	directory := t.TempDir()
	end := serving(t, directory, newFakeLoop())
	agent := call(t, directory, Drain, "")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Wait(ctx, directory, agent); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the agent runs, Wait returns %v, want the end of its context", err)
	}
	end()
	serving(t, directory, newFakeLoop()) // as if a supervisor has started the agent again
	if err := Wait(t.Context(), directory, agent); err != nil {
		t.Error(err)
	}
}

func TestReadPaused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "blue", "an object": "{}", "numbers": "[1]", "empty": "",
		"huge": strings.Repeat(" ", 2*maxPaused),
	} {
		directory := t.TempDir()
		if err := os.WriteFile(filepath.Join(directory, pausedName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		loop := newFakeLoop("blue", "red")
		pools := []string{"blue", "red"}
		Restore(Agent{Directory: directory, Loop: loop}, pools, slog.New(slog.NewTextHandler(&log, nil)))
		if !loop.paused["blue"] || !loop.paused["red"] ||
			!strings.Contains(log.String(), "cannot read which pools are paused") {
			t.Errorf("%s: the paused pools are %v, the log is %s", name, loop.paused, log.String())
		}
	}
}
