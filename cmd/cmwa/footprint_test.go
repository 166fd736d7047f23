package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// footprint counts the resources of a program: goroutines by the function that started
// them, and open files by kind.
type footprint struct {
	goroutines, files map[string]int
	threads           int
	megabytes         float64
}

// Tolerances of the growth from the first hundred edits to a thousand. Goroutines and
// files have no tolerance. The number of threads varies with the load of the machine, and
// the memory with the time since the last garbage collection.
const (
	moreThreads = 8
	moreMemory  = 1.4 // as a ratio
)

// String returns the sums, and the counts by owner.
func (f footprint) String() string {
	list := func(counts map[string]int) (text string, sum int) {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
			sum += counts[name]
		}
		return strings.Join(parts, ", "), sum
	}
	goroutines, sum := list(f.goroutines)
	files, open := list(f.files)
	return fmt.Sprintf("%d goroutines (%s), %d files (%s), %d threads, %.0f MB",
		sum, goroutines, open, files, f.threads, f.megabytes)
}

// least returns the smaller count of two footprints for each owner. It removes the
// connection and the goroutines of a call in progress, which the other footprint lacks.
func (f footprint) least(g footprint) footprint {
	both := func(a, b map[string]int) map[string]int {
		least := map[string]int{}
		for name, count := range a {
			if count = min(count, b[name]); count > 0 {
				least[name] = count
			}
		}
		return least
	}
	return footprint{
		both(f.goroutines, g.goroutines), both(f.files, g.files),
		min(f.threads, g.threads), min(f.megabytes, g.megabytes),
	}
}

// beyond lists the resources that exceed those of another footprint.
func (f footprint) beyond(first footprint) (more []string) {
	for what, counts := range map[string][2]map[string]int{
		"goroutines of": {f.goroutines, first.goroutines}, "files:": {f.files, first.files},
	} {
		for name, count := range counts[0] {
			if was := counts[1][name]; count > was {
				more = append(more, fmt.Sprintf("%d instead of %d %s %s", count, was, what, name))
			}
		}
	}
	slices.Sort(more)
	if f.threads > first.threads+moreThreads {
		more = append(more, fmt.Sprintf("%d instead of %d threads", f.threads, first.threads))
	}
	if f.megabytes > moreMemory*first.megabytes {
		more = append(more, fmt.Sprintf("%.0f instead of %.0f MB", f.megabytes, first.megabytes))
	}
	return more
}

// profiled builds an agent with testdata/profile, and returns the path of the program. This
// agent serves the stacks of its goroutines on a Unix socket.
func profiled(t *testing.T) (path string) {
	t.Helper()
	directory, err := os.Getwd()
	noError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(directory, "profile.go"): filepath.Join(directory, "testdata", "profile", "profile.go"),
	}})
	noError(t, err)
	file := fileOf(t, "overlay.json", string(overlay))
	path = filepath.Join(t.TempDir(), "cmwa")
	noError(t, build([]string{"CGO_ENABLED=0"}, "-trimpath", "-overlay", file, "-o", path, "."))
	return path
}

// look returns the present footprint of a profiled program.
func (p *program) look(socket string) footprint {
	p.w.t.Helper()
	now := footprint{goroutines: map[string]int{}, files: map[string]int{}}
	conn, err := net.Dial("unix", socket)
	p.w.must(err)
	stacks, err := io.ReadAll(conn)
	p.w.must(err)
	_ = conn.Close()
	for stack := range strings.SplitSeq(strings.TrimSpace(string(stacks)), "\n\n") {
		now.goroutines[owner(stack)]++
	}
	directory := fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)
	files, err := os.ReadDir(directory)
	p.w.must(err)
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join(directory, file.Name())); err == nil {
			kind, _, _ := strings.Cut(target, ":[") // socket:[number]
			now.files[kind]++
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	p.w.must(err)
	now.threads = len(threads)
	now.megabytes = anonymousMB(p.w.t, p)
	if p.ends(lookEvery) {
		p.w.t.Fatalf("the program has ended:\n%s", p.output())
	}
	return now
}

var function = regexp.MustCompile(`(?m)^(?:created by )?(\S+?)(?:\([^()]*\)| in goroutine \d+)$`)

// owner returns the function that started a goroutine. If this is sync.WaitGroup.Go or
// errgroup.Group.Go, owner returns the first other function of the goroutine.
func owner(stack string) string {
	found := function.FindAllStringSubmatch(stack, -1)
	slices.Reverse(found)
	for _, names := range found {
		name := names[1][strings.LastIndex(names[1], "/")+1:]
		if !strings.HasPrefix(name, "sync.(*WaitGroup).Go") && !strings.HasPrefix(name, "errgroup.(*Group).Go") {
			return name
		}
	}
	return "unknown"
}

// engineProxy starts a proxy between an agent and its Docker engine. With the server, a test
// can close idle connections. Host is the DOCKER_HOST for the agent.
func engineProxy(t *testing.T) (server *http.Server, host string) {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", engineSocket())
	}
	proxy.Transport = &http.Transport{DialContext: dial, DisableKeepAlives: true}
	proxy.ErrorLog = log.New(io.Discard, "", 0) // it would report calls that the agent cancels
	server, socket := serve(t, "unix", filepath.Join(t.TempDir(), "engine.sock"), proxy)
	return server, "unix://" + socket
}

// footprint returns the smallest counts of a program within five seconds.
func (p *program) footprint(socket string, servers ...*http.Server) footprint {
	p.w.t.Helper()
	return p.leastUntil(func(footprint) bool { return false }, 5*time.Second, socket, servers...)
}

// holdsNoMore blocks until no count of a program exceeds the same count in its first
// footprint, and fails the test after a minute. The program closes unused resources within
// a minute, but never closes leaked ones.
func (p *program) holdsNoMore(first footprint, socket string, servers ...*http.Server) footprint {
	p.w.t.Helper()
	holds := func(f footprint) bool { return len(f.beyond(first)) == 0 }
	least := p.leastUntil(holds, time.Minute, socket, servers...)
	if more := least.beyond(first); len(more) > 0 {
		p.w.t.Errorf("the agent uses more resources than at first:\n%s", strings.Join(more, "\n"))
	}
	return least
}

// leastUntil returns the smallest counts of a program when they are enough or the limit has passed.
// It closes the idle connections to the servers, which keep none meanwhile.
func (p *program) leastUntil(
	enough func(footprint) bool, limit time.Duration, socket string, servers ...*http.Server,
) (least footprint) {
	p.w.t.Helper()
	for _, server := range servers {
		server.SetKeepAlivesEnabled(false)
		defer server.SetKeepAlivesEnabled(true)
	}
	http.DefaultClient.CloseIdleConnections()
	least = p.look(socket)
	for end := time.Now().Add(limit); !enough(least) && time.Now().Before(end); {
		least = least.least(p.look(socket))
	}
	return least
}
