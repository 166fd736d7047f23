package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// fakeEngine is an engine whose responses a test can override. By default it acts like an
// engine with one image.
type fakeEngine struct {
	host     string
	api, os  string
	ahead    time.Duration               // difference by which the engine's clock is ahead
	override map[string]http.HandlerFunc // by method and end of the path, such as "POST /start"

	mu     sync.Mutex
	calls  []string
	conns  map[net.Conn]bool
	closed chan struct{} // has a token after a connection has ended
}

const containerID = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	d := &fakeEngine{api: "1.41", os: "linux", override: map[string]http.HandlerFunc{}, conns: map[net.Conn]bool{},
		closed: make(chan struct{}, 1)}
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: d, ConnState: d.trackConnection}}
	server.Start()
	t.Cleanup(server.Close)
	d.host = "unix://" + socket
	return d
}

// trackConnection records which connections are open.
func (d *fakeEngine) trackConnection(conn net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state != http.StateClosed && state != http.StateHijacked {
		d.conns[conn] = true
		return
	}
	delete(d.conns, conn)
	select {
	case d.closed <- struct{}{}:
	default:
	}
}

// connections returns the number of open connections, and a channel that receives after a
// connection has ended.
func (d *fakeEngine) connections() (open int, closed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns), d.closed
}

func (d *fakeEngine) open(ctx context.Context) (*Executor, error) {
	return New(ctx, Options{
		Environ: environ("DOCKER_HOST="+d.host, "DOCKER_API_VERSION="), Log: slog.New(slog.DiscardHandler),
		RunnerDirectory: runnerDirectory,
	})
}

// executor returns an executor of the engine.
func (d *fakeEngine) executor(t *testing.T) *Executor {
	t.Helper()
	e, err := d.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// now returns the time by the engine's clock.
func (d *fakeEngine) now() time.Time { return time.Now().Add(d.ahead) }

func (d *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.calls = append(d.calls, r.Method+" "+r.URL.Path)
	d.mu.Unlock()
	if d.api != "" {
		w.Header().Set("Api-Version", d.api)
	}
	w.Header().Set("Ostype", d.os)
	w.Header().Set("Content-Type", "application/json")
	for end, handle := range d.override {
		method, path, _ := strings.Cut(end, " ")
		if r.Method == method && strings.HasSuffix(r.URL.Path, path) {
			handle(w, r)
			return
		}
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/version"):
		fmt.Fprintf(w, `{"ApiVersion":"1.41","Os":"linux","Arch":"amd64"}`)
	case strings.HasSuffix(path, "/info"):
		fmt.Fprintf(w, `{"SystemTime":%q}`, d.now().Format(time.RFC3339Nano))
	case strings.HasPrefix(path, "/v1.41/images/"):
		fmt.Fprintf(w, `{"Id":"sha256:abc","Os":"linux","Architecture":"amd64"}`)
	case strings.HasSuffix(path, "/create"):
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"Id":%q}`, containerID)
	case strings.HasSuffix(path, "/attach"):
		hijack(w, func(conn net.Conn) {
			buffer := make([]byte, 1<<16)
			for {
				if _, err := conn.Read(buffer); err != nil {
					return
				}
			}
		})
	case strings.HasSuffix(path, "/archive"):
		w.Header().Set("X-Docker-Container-Path-Stat", "e30=")
	case strings.HasSuffix(path, "/start"), r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(path, "/wait"):
		fmt.Fprint(w, `{"StatusCode":0}`)
	case strings.HasSuffix(path, "/"+containerID+"/json"):
		fmt.Fprintf(w, `{"Id":%q,"State":{"Status":"exited","ExitCode":0},"Config":{}}`, containerID)
	default:
		fmt.Fprint(w, "{}")
	}
}

// hijack turns a request into a raw connection, as engines do for attachments.
func hijack(w http.ResponseWriter, talk func(net.Conn)) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	talk(conn)
}

func fail(code int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"message":%q}`, message)
	}
}

// count returns how many calls contain the text.
func (d *fakeEngine) count(part string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, call := range d.calls {
		if strings.Contains(call, part) {
			n++
		}
	}
	return n
}

// fakeJob returns a job for a fakeEngine.
func fakeJob(t *testing.T, raw string) *runtime.Job {
	t.Helper()
	return &runtime.Job{
		ID:         "job-of-a-story",
		Definition: runtime.Definition{Image: runtime.Image{Reference: "story:latest"}, Raw: []byte(raw)},
		Tuning:     runtime.Tuning{Instance: runtime.InstanceSpec{WorkingDirectory: amd64(t)}},
	}
}

func TestNewFails(t *testing.T) {
	silent := newFakeEngine(t)
	silent.override["HEAD /_ping"] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	silent.override["GET /_ping"] = silent.override["HEAD /_ping"]
	old, windows, other := newFakeEngine(t), newFakeEngine(t), newFakeEngine(t)
	old.api, windows.os, other.api = "1.39", "windows", ""
	forbidden := newFakeEngine(t)
	forbidden.override["GET /version"] = fail(http.StatusForbidden, "access is\nnot granted")

	noSocket := "unix://" + filepath.Join(t.TempDir(), "no.sock")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "tcp://" + listener.Addr().String()
	_ = listener.Close()

	const start = ": is it running? start it, or set DOCKER_HOST or deploy_target"
	for _, c := range []struct{ name, host, want string }{
		{"NoSocket", noSocket, "cannot reach the Docker engine at " + noSocket + start},
		{"NoListener", refusing, "cannot reach the Docker engine at " + refusing + start},
		{"Silent", silent.host, "does not respond: restart it"},
		{"Old", old.host, "has API 1.39, and 1.40 is required: upgrade it"},
		{"Windows", windows.host, "runs windows containers"},
		{"NoEngine", other.host, "is not a Docker engine"},
		{"Forbidden", forbidden.host, "access is not granted"},
		{"SSH", "ssh://somewhere", "ssh is not supported"},
		{"NotAHost", "nonsense", "nonsense"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := (&fakeEngine{host: c.host}).open(ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("New returned %q, want one line with %q", err, c.want)
			}
		})
	}
}

func TestStartFaults(t *testing.T) {
	t.Run("failed call of the engine leaves no container", func(t *testing.T) {
		for _, c := range []struct {
			name, call string
			handle     http.HandlerFunc
			want       string
			jobFault   bool
		}{
			{"CreateFails", "POST /create", fail(500, "the store is broken"),
				"create the container: the store is broken", false},
			{"NoRoom", "POST /create", fail(500, "mkdir x: no space left on device"), "disk is full", false},
			{"BadRequest", "POST /create", fail(400, "invalid something"), "invalid something", false},
			{"StartFails", "POST /start", fail(500, "OCI runtime create failed: broken"), "OCI runtime create failed",
				false},
			{"NoNetwork", "POST /start", fail(404, "network story not found"), "docker.network", false},
			{"ImageRemoved", "POST /create", fail(404, "No such image: story:latest"), "was removed from the engine",
				true},
			{"OtherMachine", "POST /start", fail(400, "exec format error"), "another kind of machine", true},
			{"AttachFails", "POST /attach", fail(500, "no streams left"), "attach to the container", false},
			{"Disconnects", "POST /start", func(w http.ResponseWriter, _ *http.Request) {
				conn, _, _ := w.(http.Hijacker).Hijack()
				_ = conn.Close()
			}, "lost the connection", false},
		} {
			t.Run(c.name, func(t *testing.T) {
				d := newFakeEngine(t)
				d.override[c.call] = c.handle
				e := d.executor(t)
				job := fakeJob(t, `{"padding":"`+strings.Repeat("x", 5_000_000)+`"}`)
				_, err := e.Start(t.Context(), job, newSetup(job, &setupLog{}))
				if err == nil || !strings.Contains(err.Error(), c.want) ||
					errors.Is(err, runtime.ErrJobFault) != c.jobFault {
					t.Errorf("Start returned %v, want %q, and a job fault: %v", err, c.want, c.jobFault)
				}
				if again := c.want == "lost the connection"; errors.Is(err, runtime.ErrConnectionLost) != again {
					t.Errorf("the error %v wraps ErrConnectionLost: %v, want %v", err, !again, again)
				}
				if d.count("DELETE /v1.41/containers/"+namePrefix) != 1 {
					t.Errorf("the container was not removed: %q", d.calls)
				}
			})
		}
	})

	t.Run("job that is cancelled during create is not started", func(t *testing.T) {
		d := newFakeEngine(t)
		ctx, giveUp := context.WithCancelCause(t.Context())
		cause := errors.New("the service no longer wants it")
		d.override["POST /create"] = func(w http.ResponseWriter, r *http.Request) {
			giveUp(cause)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"Id":%q}`, containerID)
			if r.Context().Err() != nil {
				t.Error("the call that creates the container was cancelled")
			}
		}
		e := d.executor(t)
		job := fakeJob(t, `{}`)
		if _, err := e.Start(ctx, job, newSetup(job, &setupLog{})); !errors.Is(err, cause) {
			t.Errorf("Start returned %v, want %v", err, cause)
		}
		if d.count("/start") != 0 || d.count("DELETE ") != 1 {
			t.Errorf("the engine got the calls %q, want a removal and no start", d.calls)
		}
	})
}

func TestHandoffError(t *testing.T) {
	running := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name     string
		whole    bool             // the connection breaks after the last byte of the handoff
		wait     http.HandlerFunc // the engine's response to the wait for the end
		exitCode int
		want     string // part of the error; empty if the job is started
		again    bool   // the job can be started again
	}{
		{"runner has a part and has ended", false, nil, runtime.CodeUsage, "lost the connection", true},
		{"runner has a part and waits for more", false, running, 0, "lost the connection", true},
		{"runner ended before it read anything", false, nil, 127, "send the handoff to the runner: write", false},
		{"engine killed a runner with a part", false, nil, 137, "lost the connection", true},
		{"whole handoff was lost on the way", true, nil, runtime.CodeUsage, "lost the connection", true},
		{"runner runs with the whole handoff", true, running, 0, "", false},
		{"job has succeeded", true, nil, runtime.CodeSucceeded, "", false},
		{"job has failed", true, nil, runtime.CodeFailed, "", false},
		{"engine killed a runner with the whole handoff", true, nil, 137, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newFakeEngine(t)
			d.override["POST /attach"] = func(w http.ResponseWriter, _ *http.Request) {
				// Close the connection with unread data.
				hijack(w, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
			}
			if c.wait != nil {
				d.override["POST /wait"] = c.wait
			}
			d.override["GET /"+containerID+"/json"] = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"Id":%q,"State":{"Status":"exited","ExitCode":%d}}`, containerID, c.exitCode)
			}
			e := d.executor(t)
			definition := `{}`
			if !c.whole {
				definition = `{"padding":"` + strings.Repeat("x", 5_000_000) + `"}` // more than the socket's buffer
			}
			job := fakeJob(t, definition)
			e.closeTimeout = time.Minute // the engine closes each connection, on a busy machine after some time
			e.handoffErrorLimit = time.Second
			service := &setupLog{}
			setup := newSetup(job, service)
			id, err := e.Start(t.Context(), job, setup)
			removed := d.count("DELETE /v1.41/containers/" + namePrefix)
			if c.want == "" {
				if err != nil || id != containerID || removed != 0 {
					t.Errorf("Start returned %q and %v, with %d removals; want the container and no removal", id, err,
						removed)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				errors.Is(err, runtime.ErrConnectionLost) != c.again {
				t.Errorf("Start returned %v, want an error with %q, after which the job can be started again: %v",
					err, c.want, c.again)
			}
			if removed != 1 {
				t.Errorf("the container was removed %d times, want once: %q", removed, d.calls)
			}

			// The agent continues the log of step 0 only if the handoff was withdrawn.
			setup.Log("continued")
			if err := setup.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if continued := strings.Contains(service.log(), "continued"); continued != c.again {
				t.Errorf("the agent continues the log: %v, want %v", continued, c.again)
			}
		})
	}

	t.Run("a job that runs is not removed at the end of ctx", func(t *testing.T) {
		t.Parallel()
		d := newFakeEngine(t)
		ctx, cancel := context.WithCancel(t.Context())
		d.override["POST /attach"] = func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
		}
		d.override["POST /wait"] = func(_ http.ResponseWriter, r *http.Request) {
			cancel() // while Start finds out how much of the handoff the runner has
			<-r.Context().Done()
		}
		e := d.executor(t)
		e.closeTimeout = time.Minute
		job := fakeJob(t, `{}`)
		id, err := e.Start(ctx, job, newSetup(job, &setupLog{}))
		if err != nil || id != containerID || d.count("DELETE ") != 0 {
			t.Errorf("Start returned %q and %v after the calls %q, want the container and no removal", id, err, d.calls)
		}
	})
}

func TestWaitFaults(t *testing.T) {
	// The caller waits again: see TestRetryEngine of package runtime.
	t.Run("lost connection is an error", func(t *testing.T) {
		d := newFakeEngine(t)
		var mu sync.Mutex
		waits := 0
		d.override["POST /wait"] = func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if waits++; waits == 1 {
				conn, _, _ := w.(http.Hijacker).Hijack()
				_ = conn.Close()
				return
			}
			fmt.Fprint(w, `{"StatusCode":10}`)
		}
		d.override["GET /"+containerID+"/json"] = func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"State":{"Status":"exited","ExitCode":137,"OOMKilled":true}}`)
		}
		e := d.executor(t)
		if _, err := e.Wait(t.Context(), containerID); err == nil || errors.Is(err, runtime.ErrNoInstance) {
			t.Errorf("after a lost connection Wait returned %v, want another error than %v", err, runtime.ErrNoInstance)
		}
		if exit := wait(t, e, containerID); exit.Code != 137 || exit.Reason != "out of memory" {
			t.Errorf("the runner ended with %+v, want code 137 and out of memory", exit)
		}
	})

	t.Run("removed container has the code of the wait", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["POST /wait"] = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"StatusCode":10}`) }
		d.override["GET /"+containerID+"/json"] = fail(404, "No such container")
		e := d.executor(t)
		if exit := wait(t, e, containerID); exit.Code != 10 {
			t.Errorf("the runner ended with %+v, want code 10", exit)
		}
	})
}

func TestRemoveEndingContainer(t *testing.T) {
	t.Run("a container that ends while it is removed is removed", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["DELETE /"+containerID] = func(w http.ResponseWriter, _ *http.Request) {
			if d.count("DELETE ") == 1 { // the text of Docker 20.10
				fail(500, "Could not kill running container "+containerID+", cannot remove - Container "+
					containerID+" is not running")(w, nil)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
		e := d.executor(t)
		if err := e.Remove(t.Context(), containerID, 0); err != nil || d.count("DELETE ") != 2 {
			t.Errorf("Remove returned %v after the calls %q, want a second removal", err, d.calls)
		}
	})

	t.Run("a container that cannot be killed is an error", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["DELETE /"+containerID] = fail(500, "Could not kill running container "+containerID+
			", cannot remove - tried to kill container, but did not receive an exit event")
		e := d.executor(t)
		err := e.Remove(t.Context(), containerID, 0)
		if err == nil || !strings.Contains(err.Error(), "did not receive an exit event") || d.count("DELETE ") != 1 {
			t.Errorf("Remove returned %v after the calls %q, want the error of one removal", err, d.calls)
		}
	})
}

func TestRemoveStaleLoader(t *testing.T) {
	d := newFakeEngine(t)
	var mu sync.Mutex
	abandoned := true
	d.override["HEAD /archive"] = fail(404, "")
	d.override["POST /create"] = func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if abandoned && strings.HasSuffix(r.URL.Query().Get("name"), loaderSuffix) {
			fail(409, "Conflict. The container name is already in use")(w, r)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"Id":%q}`, containerID)
	}
	d.override["GET "+loaderSuffix+"/json"] = func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"Id":"abandoned","Created":%q}`, time.Now().Add(-2*loaderTimeout).Format(time.RFC3339Nano))
	}
	d.override["DELETE /abandoned"] = func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		abandoned = false
	}
	e := d.executor(t)
	job := fakeJob(t, `{}`)
	if _, err := e.Start(t.Context(), job, newSetup(job, &setupLog{})); err != nil {
		t.Fatal(err)
	}
	if d.count("PUT ") != 1 {
		t.Errorf("the engine got the calls %q, want one upload of the runner", d.calls)
	}
}

func TestDropVolumes(t *testing.T) {
	d := newFakeEngine(t)
	d.override["HEAD /archive"] = fail(404, "")
	d.override["GET /volumes"] = func(w http.ResponseWriter, r *http.Request) {
		if filters := r.URL.Query().Get("filters"); !strings.Contains(filters, "dangling") ||
			!strings.Contains(filters, labelRunner) {
			t.Errorf("the volumes are listed with the filters %s, want unused volumes of runners", filters)
		}
		fmt.Fprintf(w, `{"Volumes":[{"Name":"cmwa-runner-old","CreatedAt":%q},`+
			`{"Name":"cmwa-runner-young","CreatedAt":%q}]}`,
			time.Now().Add(-2*oldVolume).Format(time.RFC3339), time.Now().Format(time.RFC3339))
	}
	e := d.executor(t)
	job := fakeJob(t, `{}`)
	if _, err := e.Start(t.Context(), job, newSetup(job, &setupLog{})); err != nil {
		t.Fatal(err)
	}
	if d.count("DELETE /v1.41/volumes/cmwa-runner-old") != 1 || d.count("DELETE /v1.41/volumes/") != 1 {
		t.Errorf("the engine got the calls %q, want only the old volume to be removed", d.calls)
	}
}

func TestFollow(t *testing.T) {
	t.Run("close interrupts a read", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["GET /logs"] = func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		e := d.executor(t)
		stream, err := e.Follow(t.Context(), containerID)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := stream.Read(make([]byte, 10))
			ended <- err
		}()
		_ = stream.Close()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("Read of a closed stream returned no error")
			}
		case <-time.After(10 * time.Second):
			t.Error("Close does not interrupt the read")
		}
	})

	t.Run("broken stream is an error", func(t *testing.T) {
		d := newFakeEngine(t)
		d.override["GET /logs"] = func(w http.ResponseWriter, _ *http.Request) {
			line := `{"step":1,"lines":0,"status":"running"}` + "\n"
			_, _ = w.Write(append([]byte{1, 0, 0, 0, 0, 0, 0, byte(len(line))}, line...))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		e := d.executor(t)
		stream, err := e.Follow(t.Context(), containerID)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if text, err := io.ReadAll(stream); err == nil || !strings.Contains(string(text), "running") {
			t.Errorf("the stream is %q and ends with %v, want an error", text, err)
		}
	})
}

func TestWithCancelGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ given, after, want time.Duration }{
			{time.Hour, 10 * time.Second, 40 * time.Second}, {time.Minute, 50 * time.Second, time.Minute}, {time.Minute,
				0, 30 * time.Second}, {time.Second, 0, time.Second},
		} {
			begin := time.Now()
			ctx, giveUp := context.WithTimeout(t.Context(), c.after)
			limited, done := withCancelGrace(ctx, c.given)
			<-limited.Done()
			if took := time.Since(begin); took != c.want {
				t.Errorf("with the limit %s and a caller that ends after %s the context ended after %s, want %s",
					c.given, c.after, took, c.want)
			}
			done()
			giveUp()
		}
		limited, done := withCancelGrace(t.Context(), time.Hour)
		done()
		if limited.Err() == nil {
			t.Error("the context of a completed call has not ended")
		}
	})
}

func TestClose(t *testing.T) {
	d := newFakeEngine(t)
	e := d.executor(t)
	open, closed := d.connections()
	if open == 0 {
		t.Fatal("there is no connection to close")
	}
	e.Close()
	limit := time.After(10 * time.Second)
	for open > 0 {
		select {
		case <-closed:
		case <-limit:
			t.Fatalf("%d connections are still open after Close", open)
		}
		open, closed = d.connections()
	}
	if _, err := e.List(t.Context(), "agent"); err == nil {
		e.Close()
	}
}
