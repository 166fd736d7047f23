package main

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// quietSecond is the time without a write after which the agent applies a change of
// pools, credentials or the port. For the agent, a longer pause is the end of the
// write.
const quietSecond = time.Second

// writer writes the configuration in place, as a shell with >> does, and notes the
// longest time between two writes.
type writer struct {
	w       *world
	last    time.Time
	longest time.Duration
}

func (f *writer) wrote() {
	now := time.Now()
	if !f.last.IsZero() {
		f.longest = max(f.longest, now.Sub(f.last))
	}
	f.last = now
}

func (f *writer) truncate() {
	f.w.must(os.Truncate(f.w.file(), 0))
	f.wrote()
}

func (f *writer) add(line string) {
	file, err := os.OpenFile(f.w.file(), os.O_WRONLY|os.O_APPEND, 0)
	f.w.must(err)
	_, err = file.WriteString(line)
	f.w.must(err)
	f.w.must(file.Close())
	f.wrote()
}

func TestSettleLineByLine(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]func(*testing.T) (void bool){
		"in the file that is there":            writeLineByLine,
		"in a new file after the old one went": createLineByLine,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if !story(t) {
					return
				}
				t.Log("the machine has held up the writer for too long; once more")
			}
			t.Fatal("the machine is too slow for this test: the writer's pauses were too long five times")
		})
	}
}

// writeLineByLine rewrites the file of an agent line by line, with pauses. Its first
// two lines alone are a valid configuration of another target and another port. It
// reports whether the run is void because a pause was too long.
func writeLineByLine(t *testing.T) (void bool) {
	w := newWorld(t, "process")
	port := freePort(t)
	lines := []string{
		"service_url: " + w.url, "token: " + w.pool, fmt.Sprint("http_server_port: ", port), "log_level: debug",
	}
	agent := w.follow(nil, lines...)
	f := &writer{w: w}

	// The agent sees an empty file, and then the first line, which has no token.
	f.truncate()
	content := w.content(append(lines, "polling_interval: 150ms")...)
	first, remaining, _ := strings.Cut(content, "\n")
	second, remaining, _ := strings.Cut(remaining, "\n")
	f.add(first + "\n")
	agent.waitFor("configuration rejected")

	// It sees the first two lines, and must wait for the other lines.
	f.add(second + "\n")
	agent.waitForMatch(regexp.MustCompile("configuration file is being written|configuration reloaded"))
	for line := range strings.Lines(remaining) {
		agent.ends(80 * time.Millisecond) // the pause of the writer
		f.add(line)
	}
	if f.longest > quietSecond*9/10 {
		return true
	}

	onlyWhole(t, agent)
	return false
}

// createLineByLine moves the file of an agent away, as for a backup, and writes a new
// one in its place. The first two lines are written together, because the agent must not see
// the new file before. It reports whether the run is void.
func createLineByLine(t *testing.T) (void bool) {
	w := newWorld(t, "process")
	lines := []string{
		"service_url: " + w.url, "token: " + w.pool, fmt.Sprint("http_server_port: ", freePort(t)),
		"log_level: debug",
	}
	agent := w.follow(nil, lines...)
	f := &writer{w: w}
	content := w.content(append(lines, "polling_interval: 150ms")...)
	first, remaining, _ := strings.Cut(content, "\n")
	second, remaining, _ := strings.Cut(remaining, "\n")

	w.must(os.Rename(w.file(), w.file()+"~"))
	w.must(os.WriteFile(w.file(), []byte(first+"\n"+second+"\n"), 0o600))
	f.wrote()
	agent.waitForMatch(regexp.MustCompile("configuration file is being written|configuration reloaded"))
	for line := range strings.Lines(remaining) {
		agent.ends(80 * time.Millisecond) // the pause of the writer
		f.add(line)
	}
	if f.longest > quietSecond*9/10 {
		return true
	}
	onlyWhole(t, agent)
	return false
}

// onlyWhole checks that the agent applied only the whole file, whose only change is
// polling_interval.
func onlyWhole(t *testing.T, agent *program) {
	t.Helper()
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=2`))
	agent.signal(syscall.SIGTERM)
	agent.exit(cli.ExitOK)
	output := agent.output()
	if reloads := strings.Count(output, "configuration reloaded"); reloads != 1 ||
		!strings.Contains(output, `pool=default polling_interval="`) {
		t.Errorf("the configuration was changed %d times, want once, to another polling_interval", reloads)
	}
	for _, moved := range []string{"drain pool", "replace", "set the agent's HTTP port"} {
		if strings.Contains(output, moved) {
			t.Errorf("a part of the file was in force: the log has %q", moved)
		}
	}
	if starts := strings.Count(output, "start pool"); starts != 1 {
		t.Errorf("%d pools were started, want 1", starts)
	}
}

func TestSettleInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	from, to := freePort(t), freePort(t)
	lines := func(port int) []string { return []string{"token: " + w.pool, fmt.Sprint("http_server_port: ", port)} }
	health := func(port int) int { return probe(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)) }
	w.follow(nil, lines(from)...)

	began := time.Now()
	w.must(os.WriteFile(w.file(), []byte(w.content(lines(to)...)), 0o600))
	w.eventually("the server moves", func() bool { return health(to) == http.StatusOK })
	if took := time.Since(began); took < quietSecond {
		t.Errorf("the server moved %s after a write in place, before the file was quiet for %s", took, quietSecond)
	}
	w.save(lines(from)...)
	w.eventually("the server moves back", func() bool { return health(from) == http.StatusOK })
}
