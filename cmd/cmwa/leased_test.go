package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

// leaseSpan is the duration of leases in these tests.
const leaseSpan = 6 * time.Second

// leaseFlags are the flags of the service in these tests.
func leaseFlags() []string {
	return []string{"--lease-duration", leaseSpan.String(), "--lease-stop-time", "4s"}
}

// leasedWork refers to a scan that the service has queued.
type leasedWork struct {
	w    *world
	path string
}

// leasedView is the state of leased work at the service.
type leasedView struct {
	Status string
	Leases []struct {
		Status, Ended string
		Acquired      time.Time
	}
}

// scan queues a scan with one step.
func (w *world) scan(script string) leasedWork {
	w.t.Helper()
	path := "/api/orgs/organization/agent-pools/" + w.poolID + "/activities"
	var answer struct{ ID string }
	w.call(http.MethodPost, path, map[string]any{
		"kind": "insights_scan", "image": baseImage, "shell": "sh", "steps": []step{{Name: "scan", Run: script}},
		"retryDelay": "0s",
	}, &answer)
	return leasedWork{w, path + "/" + answer.ID}
}

func (l leasedWork) view() (view leasedView) {
	l.w.t.Helper()
	l.w.call(http.MethodGet, l.path, nil, &view)
	return view
}

// await blocks until the work has this status, and returns the state of the work.
func (l leasedWork) await(status string) leasedView {
	l.w.t.Helper()
	l.w.eventually("the scan is "+status, func() bool { return l.view().Status == status })
	return l.view()
}

// witness returns a script that appends the time, in nanoseconds, to a file in the directory every
// 100 ms. Each run of the script has its own file. When the file "end" exists, the script
// appends a line to the file "finished" and ends.
func witness(directory string) string {
	return fmt.Sprintf(`cd '%s'; while ! [ -e end ]; do date +%%s%%N >>run-$$; sleep 0.1; done; echo x >>finished`,
		directory)
}

// lines returns the lines of the files in a directory whose names match a pattern, by file name.
func lines(t *testing.T, directory, pattern string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, pattern))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(file)] = strings.Fields(string(text))
	}
	return all
}

// agentAt starts an agent with its own state directory. The agent polls the service at a URL.
func (w *world) agentAt(name, url string) *program {
	w.t.Helper()
	directory := filepath.Join(w.directory, name)
	w.must(os.MkdirAll(directory, 0o700))
	file := filepath.Join(directory, "agent.yaml")
	w.must(os.WriteFile(file, []byte(w.settings([]string{"service_url: " + url}, "token: "+w.pool,
		"working_directory: "+w.bin, "http_server_port: 0")), 0o600))
	env := []string{"HOME=" + directory, "TMPDIR=" + directory, "XDG_STATE_HOME=" + filepath.Join(directory, "state")}
	return w.start(name, env, "cmwa", "run", "--config", file)
}

func TestLeasedWork(t *testing.T) {
	t.Parallel()
	t.Run("a scan runs at the same time as a deployment", func(t *testing.T) {
		atLocalTargets(t, func(t *testing.T, w *world) {
			agent := w.agent()
			release := w.holdAnywhere("held", w.poolID)
			w.scan("echo scanned; exit 0").await("Completed")
			w.scan("exit 3").await("Failed")
			if status, _ := w.status("held"); status != "running" {
				t.Errorf("the deployment is %s, want running", status)
			}
			release()
			w.await("held", "succeeded")
			agent.waitFor("lease completed")
			if left := w.leftovers(); len(left) > 0 {
				w.eventually("nothing is left", func() bool { return len(w.leftovers()) == 0 })
			}
		})
	})
}

func TestLeasedAgentKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process", leaseFlags()...)
	directory := t.TempDir()
	scan := w.scan("while ! [ -e '" + directory + "/end' ]; do echo scanning; sleep 0.1; done & " + witness(directory))
	first := w.agentAt("first", w.url)
	w.eventually("the scan runs", func() bool { return len(lines(t, directory, "run-*")) == 1 })
	first.signal(syscall.SIGKILL)
	w.eventually("the first agent has ended", func() bool { return first.ends(time.Millisecond) })

	// Another agent gets the work when the lease has expired, and only its run finishes.
	w.agentAt("second", w.url)
	w.eventually("the scan runs again", func() bool { return len(lines(t, directory, "run-*")) == 2 })
	view := scan.view()
	if len(view.Leases) != 2 || view.Leases[0].Ended != "lease" ||
		view.Leases[1].Acquired.Sub(view.Leases[0].Acquired) < leaseSpan {
		t.Errorf("the leases are %+v", view.Leases)
	}

	// The first agent is started again. It removes what its run has left, and does not
	// adopt the work.
	again := w.agentAt("first", w.url)
	again.waitFor("removing leased work of an agent that has ended")
	w.eventually("nothing of the first agent is left", func() bool {
		left, _ := filepath.Glob(filepath.Join(w.directory, "first", "cmwa-process-*", "*"))
		return len(left) == 0
	})
	w.must(os.WriteFile(filepath.Join(directory, "end"), nil, 0o600))
	scan.await("Completed")
	if strings.Contains(again.output(), "job resumed") {
		t.Errorf("the first agent has adopted leased work:\n%s", again.output())
	}
	if finished := lines(t, directory, "finished")["finished"]; len(finished) != 1 {
		t.Errorf("%d runs have finished, want one", len(finished))
	}
}

func TestLeasedLinkCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process", leaseFlags()...)
	proxy := runtimetest.NewProxy(t, runtimetest.ProxyOptions{Target: w.url})
	directory := t.TempDir()
	scan := w.scan(witness(directory))
	first := w.agentAt("first", proxy.URL())
	w.eventually("the scan runs", func() bool { return len(lines(t, directory, "run-*")) == 1 })

	// The proxy loses only the requests that renew the lease. The runner can still reach
	// the service.
	proxy.Inject(runtimetest.Fault{Kind: runtimetest.BlackHole}, 1000, func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/renew")
	})
	first.waitFor("could not be renewed")
	first.signal(syscall.SIGTERM)
	w.agentAt("second", w.url)
	w.eventually("the scan runs again", func() bool { return len(lines(t, directory, "run-*")) == 2 })
	w.must(os.WriteFile(filepath.Join(directory, "end"), nil, 0o600))
	view := scan.await("Completed")

	// The first run ended before the second agent acquired the next lease.
	if len(view.Leases) != 2 {
		t.Fatalf("the leases are %+v", view.Leases)
	}
	var ends []time.Time
	for _, times := range lines(t, directory, "run-*") {
		last, err := strconv.ParseInt(times[len(times)-1], 10, 64)
		w.must(err)
		ends = append(ends, time.Unix(0, last))
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return a.Compare(b) })
	if !ends[0].Before(view.Leases[1].Acquired) {
		t.Errorf("the first run wrote at %s, after the next lease was acquired at %s", ends[0], view.Leases[1].Acquired)
	}
	if finished := lines(t, directory, "finished")["finished"]; len(finished) != 1 {
		t.Errorf("%d runs have finished, want one", len(finished))
	}
}
