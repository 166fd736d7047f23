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
func (w *world) lines(directory, pattern string) map[string][]string {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, pattern))
	w.must(err)
	all := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		w.must(err)
		all[filepath.Base(file)] = strings.Fields(string(text))
	}
	return all
}

// waitRuns blocks until the script of witness has been started this number of times.
func (w *world) waitRuns(directory string, count int) {
	w.t.Helper()
	w.eventually(fmt.Sprint("the scan has run ", count, " times"), func() bool {
		return len(w.lines(directory, "run-*")) == count
	})
}

// finish ends the script of witness, blocks until the scan is completed, and returns the state of
// the scan. It checks that one run has finished.
func (l leasedWork) finish(directory string) leasedView {
	l.w.t.Helper()
	l.w.must(os.WriteFile(filepath.Join(directory, "end"), nil, 0o600))
	view := l.await("Completed")
	if finished := l.w.lines(directory, "finished")["finished"]; len(finished) != 1 {
		l.w.t.Errorf("%d runs have finished, want one", len(finished))
	}
	return view
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

// TestLeasedWork runs scans at the same time as a deployment.
func TestLeasedWork(t *testing.T) {
	t.Parallel()
	atLocalTargets(t, func(t *testing.T, w *world) {
		agent := w.agent()
		release := w.holdAnywhere("held", w.poolID)
		w.scan("echo scanned; exit 0").await("Completed")
		w.scan("exit 3").await("Failed")
		w.wantStatus("held", "running")
		release()
		agent.waitFor("lease completed")
		w.eventually("nothing is left", func() bool { return len(w.leftovers()) == 0 })
	})
}

func TestLeasedAgentKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process", leaseFlags()...)
	directory := t.TempDir()
	scan := w.scan("while ! [ -e '" + directory + "/end' ]; do echo scanning; sleep 0.1; done & " + witness(directory))
	first := w.agentAt("first", w.url)
	w.waitRuns(directory, 1)
	w.kill(first)

	// Another agent gets the work when the lease has expired, and only its run finishes.
	w.agentAt("second", w.url)
	w.waitRuns(directory, 2)
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
	scan.finish(directory)
	again.wantPrinted(0, "job resumed")
}

func TestLeasedLinkCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process", leaseFlags()...)
	proxy := runtimetest.NewProxy(t, runtimetest.ProxyOptions{Target: w.url})
	directory := t.TempDir()
	scan := w.scan(witness(directory))
	first := w.agentAt("first", proxy.URL())
	w.waitRuns(directory, 1)

	// The proxy loses only the requests that renew the lease. The runner can still reach
	// the service.
	proxy.Inject(runtimetest.Fault{Kind: runtimetest.BlackHole}, 1000, func(r *http.Request) bool {
		return strings.HasSuffix(r.URL.Path, "/renew")
	})
	first.waitFor("could not be renewed")
	first.signal(syscall.SIGTERM)
	w.agentAt("second", w.url)
	w.waitRuns(directory, 2)
	view := scan.finish(directory)

	// The first run ended before the second agent acquired the next lease.
	if len(view.Leases) != 2 {
		t.Fatalf("the leases are %+v", view.Leases)
	}
	var ends []time.Time
	for _, times := range w.lines(directory, "run-*") {
		last, err := strconv.ParseInt(times[len(times)-1], 10, 64)
		w.must(err)
		ends = append(ends, time.Unix(0, last))
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return a.Compare(b) })
	if !ends[0].Before(view.Leases[1].Acquired) {
		t.Errorf("the first run wrote at %s, after the next lease was acquired at %s", ends[0], view.Leases[1].Acquired)
	}
}
