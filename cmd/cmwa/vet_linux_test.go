package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// seen returns the output of the real cmwa vet at a pseudo-terminal.
func seen(t *testing.T, directory string, environ []string, args ...string) string {
	t.Helper()
	master, terminal := openTerminal(t)
	defer master.Close()
	cmd := exec.Command(staticCmwa(t), append([]string{"vet"}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, terminal, terminal
	cmd.Env = append([]string{"HOME=/nowhere", "TERM=xterm"}, environ...)
	noError(t, cmd.Start())
	terminal.Close()
	limit := time.AfterFunc(storyLimit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	screen, _ := io.ReadAll(master) // when vet ends, the read fails
	_ = cmd.Wait()                  // tests check only the output
	return strings.ReplaceAll(string(screen), "\r\n", "\n")
}

func TestVetTerminal(t *testing.T) {
	t.Parallel()
	directory := directoryOf(t, map[string]string{
		"agent.yaml": "token: " + canary + "\nlog_level: 7\ntokn: " + canary[4:] +
			"\nservice_url: https://me:hunter2@host\nworkflow_runners_embeddable: x\n",
		"second.yaml": "token: x y\n",
	})
	want := `agent.yaml:2:12: log_level: must be one of debug, info, warn, error
    log_level: 7
               ^
agent.yaml:3:1: tokn: unknown key
    tokn: …
    ^
  hint: did you mean "token"?
agent.yaml:4:14: service_url: must be a URL such as https://api.pulumi.com, without user, query or fragment
    service_url: …
                 ^
agent.yaml:5:1: warning: workflow_runners_embeddable: has no effect
    workflow_runners_embeddable: …
    ^
  hint: the runner programs are looked up in working_directory
second.yaml:1:8: token: must be printable ASCII characters without spaces
    token: …
           ^
4 errors, 1 warning in 2 files
`
	plain := seen(t, directory, []string{"NO_COLOR=1"}, "agent.yaml", "second.yaml")
	if plain != want {
		t.Errorf("the screen shows\n%s", plain)
	}
	if dumb := seen(t, directory, []string{"TERM=dumb"}, "agent.yaml", "second.yaml"); dumb != want {
		t.Errorf("a terminal without colours shows\n%s", dumb)
	}
	colours := seen(t, directory, nil, "agent.yaml", "second.yaml")
	if !strings.Contains(colours, "\x1b[1magent.yaml:2:12:\x1b[0m log_level") ||
		!strings.Contains(colours, "\x1b[33mwarning:\x1b[0m") {
		t.Errorf("the screen shows %q", colours)
	}
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[33m"} {
		colours = strings.ReplaceAll(colours, code, "")
	}
	if colours != want {
		t.Errorf("without its colours, the screen shows\n%s", colours)
	}
	clean := seen(t, directoryOf(t, map[string]string{"a.yaml": "token: pul-x"}), nil, "a.yaml")
	if clean != "0 errors, 0 warnings in 1 file\n" {
		t.Errorf("for a file without problems, the screen shows %q", clean)
	}
	if document := seen(t, directory, nil, "--format", "github", "second.yaml"); strings.Contains(document, "\x1b") ||
		strings.Contains(document, "^") {
		t.Errorf("in another format, the screen shows %q", document)
	}
}
