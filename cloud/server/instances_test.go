package server

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// TestOpenInstances uses two instances of the service with one database, which get the calls in turn.
func TestOpenInstances(t *testing.T) {
	t.Run("a job is claimed once, and one job of a stack runs", func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		p := w.pool("p")
		const stacks, each = 4, 5
		for i := range stacks {
			at := w.stack(fmt.Sprintf("s%d", i))
			for range each {
				w.deploy(at, steps(1))
			}
		}
		var runs, running, twice atomic.Int64
		var claims sync.Map
		var agents sync.WaitGroup
		for range 2 * stacks {
			agents.Go(func() {
				for runs.Load() < stacks*each {
					c := w.claim(p)
					if c == nil {
						continue
					}
					if running.Add(1) > stacks {
						twice.Add(1)
					}
					if _, claimed := claims.LoadOrStore(c.job.JobID, true); claimed {
						twice.Add(1)
					}
					c.runs(0, 0)
					running.Add(-1)
					c.runs(1, 1)
					runs.Add(1)
				}
			})
		}
		agents.Wait()
		if twice.Load() > 0 {
			t.Errorf("%d claims of a claimed job, or of a stack with a running job", twice.Load())
		}
	})

	t.Run("of many updates of a stack that start at the same time, one gets the lock", func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		w.stack("s")
		var started atomic.Int64
		var clients sync.WaitGroup
		for range 20 {
			u := w.update("s", object{})
			clients.Go(func() {
				switch got := w.ask(w.user, "POST", u.path(""), object{}); got.code {
				case 200:
					started.Add(1)
				case 409:
				default:
					t.Errorf("the start of an update: %d %s", got.code, got.body)
				}
			})
		}
		clients.Wait()
		if started.Load() != 1 {
			t.Errorf("%d updates have started, want 1", started.Load())
		}
	})

	t.Run("both add to a journal, and both know what the other has added", func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		w.stack("s")
		u := w.update("s", object{}).startWith(object{"journalVersion": 1})
		var want []string
		for i := 1; i <= 6; i++ {
			name := fmt.Sprintf("r%d", i)
			want = append(want, name)
			u.entries(t, 204, object{"kind": 0, "sequenceID": 2 * i, "operationID": i})
			u.entries(t, 204, object{"kind": 1, "sequenceID": 2*i + 1, "operationID": i, "state": resource(name)})
		}
		for range 2 { // no resource was removed before
			u.entries(t, 400, object{"kind": 1, "sequenceID": 99, "operationID": 9, "removeNew": 9})
		}
		replaced := object{"kind": 4, "sequenceID": 100, "operationID": 7, "removeNew": 1, "state": resource("new")}
		u.entries(t, 204, replaced)
		for range 2 { // was removed
			u.entries(t, 400, object{"kind": 4, "sequenceID": 101, "operationID": 8, "removeNew": 1})
		}
		if got := u.complete("succeeded"); got != 204 {
			t.Errorf("completed: %d", got)
		}
		w.holds("s", "", append([]string{"new"}, want[1:]...)...)
	})

	t.Run("readers get the log and the events that the other instance stores", func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		p, at := w.pool("p"), w.stack("s")
		id := w.deploy(at, steps(1))
		c := w.mustClaim(p)
		c.status(0, running)
		u := w.update("s", object{}).start()
		var lines, sequences string
		for i := range 6 {
			lines += fmt.Sprintf("line %d\n", i)
			sequences = strings.TrimSpace(fmt.Sprintf("%s %d", sequences, i))
			if got := c.logs(0, i, fmt.Sprintf("line %d\n", i)); got != 200 {
				t.Fatalf("a line is answered with %d", got)
			}
			if got := u.ask("POST", "/events/batch", events(i)); got.code != 204 {
				t.Fatalf("an event is answered with %d", got.code)
			}
			if text, _ := w.log(at, id); text != "[Setup]"+lines {
				t.Errorf("the log is %q, want %q", text, lines)
			}
			if got, _ := u.read(""); strings.TrimSpace(got) != sequences {
				t.Errorf("the events are %s, want %s", got, sequences)
			}
		}
	})

	t.Run("a deleted token is refused at once", func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		made := w.newToken("/api/user/tokens", object{"description": "d"})
		for range 2 {
			w.want(200, made.Token, "GET", "/api/user", nil, nil)
		}
		w.want(204, w.user, "DELETE", "/api/user/tokens/"+made.ID, nil, nil)
		for range 2 {
			w.want(401, made.Token, "GET", "/api/user", nil, nil)
		}
	})
}

// TestDuty runs two instances whose job sends its heartbeats to both. The regular work moves from one to the other.
func TestDuty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addInstance()
		runs := func(s *Server) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = s.Run(ctx)
			}()
			return func() { cancel(); <-ended }
		}
		holder := func() string {
			t.Helper()
			var d store.Duty
			err := w.server.db.Read(t.Context(), func(tx *store.Tx) (err error) {
				d, err = tx.Duty(store.Background)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return d.Holder
		}
		stopFirst := runs(w.server)
		time.Sleep(time.Minute)
		stopSecond := runs(w.second)
		defer w.close()

		// 1. A job whose heartbeats go to both instances in turn does not fail. The first instance does the work.
		p, at := w.pool("p"), w.stack("s")
		id, c := w.deploy(at, steps(1)), w.mustClaim(p)
		c.definition()
		for range 60 {
			time.Sleep(30 * time.Second)
			c.heartbeat()
		}
		w.shows(at, id, accepted, notStarted, notStarted)
		if holder() != w.server.instance {
			t.Error("the second instance has taken the work of the first")
		}

		// 2. The job is silent for 5 minutes, then the first instance ends. The second fails the job 5 minutes later.
		time.Sleep(5 * time.Minute)
		stopFirst()
		time.Sleep(4*time.Minute + 50*time.Second)
		w.shows(at, id, accepted, notStarted, notStarted)
		if holder() != w.second.instance {
			t.Error("the second instance has not taken the work of the first")
		}
		time.Sleep(15 * time.Second)
		w.shows(at, id, failed, notStarted, notStarted)

		// 3. After a time without any instance, a job has ten minutes to send a heartbeat.
		id, c = w.deploy(at, steps(1)), w.mustClaim(p)
		c.definition()
		stopSecond()
		time.Sleep(time.Hour)
		stopFirst = runs(w.server)
		time.Sleep(9 * time.Minute)
		w.shows(at, id, accepted, notStarted, notStarted)
		time.Sleep(2 * time.Minute)
		w.shows(at, id, failed, notStarted, notStarted)
		stopFirst()
	})
}

// instanceVariable makes the program of the tests an instance of the service. Its value is the data directory.
const instanceVariable = "CMWA_TEST_INSTANCE"

// serveInstance is an instance in a process of its own. It prints its address, and returns in all other processes.
func serveInstance() {
	directory := os.Getenv(instanceVariable)
	if directory == "" {
		return
	}
	err := func() error {
		s, err := open(context.Background(), Options{Directory: directory, UpdateLease: time.Second})
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go s.Run(context.Background())
		fmt.Println(listener.Addr())
		return http.Serve(listener, s.Handler())
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// instance is an instance of the service in a process of its own.
type instance struct {
	process *os.Process
	handler http.Handler // sends calls to it
}

// startInstance starts an instance, which is killed at the end of the test.
func startInstance(t *testing.T, directory string) instance {
	t.Helper()
	program := exec.CommandContext(t.Context(), os.Args[0])
	program.Env = append(os.Environ(), instanceVariable+"="+directory)
	program.Stderr = os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the instance has no address: %v", err)
	}
	target := &url.URL{Scheme: "http", Host: strings.TrimSpace(address)}
	return instance{program.Process, httputil.NewSingleHostReverseProxy(target)}
}

// pause stops the process of an instance between two transactions. A paused process keeps its locks: within a
// transaction it would keep the others from writing for as long as it is paused.
func (i instance) pause(w *world) {
	w.t.Helper()
	for paused := false; !paused; {
		if err := i.process.Signal(syscall.SIGSTOP); err != nil {
			w.t.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(i.process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			w.t.Fatalf("the instance has not stopped: %v, %v", status, err)
		}
		if paused = w.writable(); !paused {
			i.resume(w)
		}
	}
}

func (i instance) resume(w *world) {
	w.t.Helper()
	if err := i.process.Signal(syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
}

// writable reports whether no transaction is writing to the database.
func (w *world) writable() bool {
	w.t.Helper()
	db := w.database()
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(context.Background(), "PRAGMA busy_timeout = 0"); err != nil {
		w.t.Fatal(err)
	}
	_, err := db.ExecContext(context.Background(), "BEGIN IMMEDIATE")
	return err == nil // closing the connection ends the transaction
}

// TestOpenProcesses runs two instances as processes with one database. The first is paused while it has the regular
// work, and while a client of it holds the lock of a stack.
func TestOpenProcesses(t *testing.T) {
	w := newWorld(t)
	w.stack("s")
	w.close() // the processes serve its directory
	first := startInstance(t, w.directory)
	w.handler = first.handler
	paused := w.update("s", object{}).start()
	if got := paused.checkpoint(resources("a")); got != 204 {
		t.Fatalf("a checkpoint is answered with %d", got)
	}
	second := startInstance(t, w.directory)

	// 1. The first instance is paused. The second one ends its update after a second, and another update starts.
	first.pause(w)
	w.handler = second.handler
	awaitStatus := func(want string) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var status string
			w.read([]any{&status}, `SELECT status FROM updates WHERE id = ?`, paused.id)
			if status == want {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("the update is %s after a minute, want %s", status, want)
			}
		}
	}
	awaitStatus(failed)
	next := w.update("s", object{}).start()
	if got := next.checkpoint(resources("a", "b")); got != 204 {
		t.Fatalf("a checkpoint is answered with %d", got)
	}

	// 2. The first instance continues, and refuses the lost lease.
	first.resume(w)
	w.handler = first.handler
	if got := paused.checkpoint(resources("c")); got != 403 {
		t.Errorf("a checkpoint with a lost lease is answered with %d, want 403", got)
	}
	w.holds("s", "", "a", "b")

	// 3. The first instance is killed. The second one serves its clients.
	if err := first.process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.handler = second.handler
	if got := next.complete("succeeded"); got != 204 {
		t.Errorf("the end of an update is answered with %d", got)
	}
	w.at("s", 2, false)
}
