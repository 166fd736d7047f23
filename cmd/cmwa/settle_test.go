package main

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// quietSecond is how long a file that is written in place must stay unchanged before the
// agent applies a change of pools, credentials or the port. If the writer pauses longer,
// the agent treats the file as complete.
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

// TestSettleLineByLine checks that the agent applies a file only when it is complete, although
// its first two lines alone are a valid configuration with another target and another port.
func TestSettleLineByLine(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(f *writer, agent *program, content string){
		"in the existing file":                         writeLineByLine,
		"in a new file, after a rename of the old one": createLineByLine,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "process")
			port := agentPort(freePort(t))
			lines := []string{"service_url: " + w.url, "token: " + w.pool, port.setting(), "log_level: debug"}
			agent := w.follow(nil, lines...)
			f := &writer{w: w}
			write(f, agent, w.content(append(lines, "polling_interval: 150ms")...))
			if f.longest > quietSecond*9/10 {
				// On a machine under load the writer may pause for so long that the lines so far are a
				// complete file. Then only the last state is known.
				w.eventually("the complete file is in force", func() bool {
					return w.once("plan", "--live", "--config", w.file(), w.file()).code == cli.ExitOK
				})
				return
			}
			onlyWhole(t, agent)
		})
	}
}

// writeLineByLine rewrites the configuration of an agent line by line, with pauses.
func writeLineByLine(f *writer, agent *program, content string) {
	f.w.t.Helper()
	first, remaining, _ := strings.Cut(content, "\n")
	second, remaining, _ := strings.Cut(remaining, "\n")

	// The agent reads an empty file, and then only the first line, which has no token.
	f.truncate()
	f.add(first + "\n")
	agent.waitForMatch(regexp.MustCompile("configuration file is being written|configuration rejected"))

	f.add(second + "\n")
	f.addSlowly(agent, remaining)
}

// createLineByLine renames the configuration of an agent, as for a backup, and writes a new
// file at the old path. It writes the first two lines together, because the agent must not
// read the new file with less content.
func createLineByLine(f *writer, agent *program, content string) {
	f.w.t.Helper()
	end := strings.Index(content, "\n") + 1
	end += strings.Index(content[end:], "\n") + 1
	f.w.must(os.Rename(f.w.file(), f.w.file()+"~"))
	f.w.must(os.WriteFile(f.w.file(), []byte(content[:end]), 0o600))
	f.wrote()
	f.addSlowly(agent, content[end:])
}

// addSlowly waits until the agent has read the lines so far, and adds the others with pauses.
func (f *writer) addSlowly(agent *program, lines string) {
	f.w.t.Helper()
	agent.waitForMatch(regexp.MustCompile("configuration file is being written|configuration reloaded"))
	for line := range strings.Lines(lines) {
		agent.ends(80 * time.Millisecond) // the pause of the writer
		f.add(line)
	}
}

// onlyWhole checks that an agent has applied the complete file and no part of it. The only
// change in the complete file is polling_interval.
func onlyWhole(t *testing.T, agent *program) {
	t.Helper()
	agent.waitForMatch(regexp.MustCompile(`converged.*generation=2`))
	agent.signal(syscall.SIGTERM)
	agent.exit(cli.ExitOK)
	if output := agent.output(); !strings.Contains(output, `pool=default polling_interval="`) {
		t.Errorf("polling_interval was not changed:\n%s", output)
	}
	agent.wantPrinted(1, "configuration reloaded", "start pool")
	agent.wantPrinted(0, "drain pool", "replace", "set the agent's HTTP port") // no part of the file was in force
}

func TestSettleInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	from, to := agentPort(freePort(t)), agentPort(freePort(t))
	w.follow(nil, "token: "+w.pool, from.setting())

	started := time.Now()
	w.must(os.WriteFile(w.file(), []byte(w.content("token: "+w.pool, to.setting())), 0o600))
	w.eventually("the HTTP server answers at the new port", func() bool { return to.healthz() == http.StatusOK })
	if took := time.Since(started); took < quietSecond {
		t.Errorf("the HTTP server used the new port %s after a write in place, want at least %s", took, quietSecond)
	}
	w.save("token: "+w.pool, from.setting())
	w.eventually("the HTTP server answers at the first port", func() bool { return from.healthz() == http.StatusOK })
}
