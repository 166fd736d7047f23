package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema/printable"
)

// output is the result of one command line.
type output struct {
	code           int
	stdout, stderr string
}

// cmwa runs one command line of the program within the test process, with only these variables.
func cmwa(environ []string, args ...string) output { return cmwaReads("", environ, args...) }

// cmwaReads is like cmwa, and has a standard input.
func cmwaReads(stdin string, environ []string, args ...string) output {
	var stdout, stderr bytes.Buffer
	ctx := context.Background()
	code := execute(ctx, ctx, args, stdio{readEnvironment(environ), strings.NewReader(stdin), &stdout, &stderr})
	return output{code, stdout.String(), stderr.String()}
}

// outputOf runs a program, and returns its exit code and its output.
func outputOf(t testing.TB, cmd *exec.Cmd) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// decode decodes JSON.
func decode(t testing.TB, content []byte, value any) {
	t.Helper()
	if err := json.Unmarshal(content, value); err != nil {
		t.Fatalf("%v: %s", err, content)
	}
}

// directoryOf puts files into a new directory. Their names may contain directories.
func directoryOf(t testing.TB, content map[string]string) string {
	t.Helper()
	directory := t.TempDir()
	for name, text := range content {
		path := filepath.Join(directory, name)
		noError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		noError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return directory
}

// fileOf writes a file to a new temporary directory of the test.
func fileOf(t testing.TB, name, content string) string {
	t.Helper()
	return filepath.Join(directoryOf(t, map[string]string{name: content}), name)
}

// TestEffects checks that the text of a plan shows each effect in its colour, and nothing else.
func TestEffects(t *testing.T) {
	colours := map[reconcile.Effect]printable.Colour{
		reconcile.Live: printable.Green, reconcile.Rebind: printable.Green, reconcile.NextJob: printable.Yellow,
		reconcile.Drain: printable.Red, reconcile.Restart: printable.Red,
	}
	var changes []reconcile.Change
	for _, effect := range reconcile.Effects() {
		changes = append(changes, reconcile.Change{Key: "live", From: "drain", To: "restart", Effect: effect})
	}
	plain := reconcile.Describe([]reconcile.Reload{{Pool: "live", PoolChange: reconcile.Tuned, Changes: changes}})
	var want strings.Builder
	for line := range strings.Lines(plain) {
		for effect, colour := range colours {
			if after, ok := strings.CutPrefix(line, "  "+string(effect)+" "); ok {
				line = colour.Paint("  "+string(effect)) + " " + after
			}
		}
		want.WriteString(line)
	}
	if got := effects.Paint(plain); got != want.String() || strings.Count(got, "\x1b[") != 2*len(colours) {
		t.Errorf("got %q, want %q", got, want.String())
	}
}

func TestReadInterrupted(t *testing.T) {
	good := fileOf(t, "good.yaml", "token_file: /t\n")
	for command, want := range map[string]int{
		"vet - " + good: exitUnread, "pod -": exitUnread, "plan - " + good: exitInvalid,
		"plan --format json " + good + " -": exitInvalid,
	} {
		t.Run(strings.Fields(command)[0], func(t *testing.T) {
			stdin, writer := io.Pipe()
			defer writer.Close()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var stdout, stderr bytes.Buffer
			code := execute(ctx, ctx, strings.Fields(command), stdio{nil, stdin, &stdout, &stderr})
			if code != want || stdout.Len()+stderr.Len() > 0 {
				t.Errorf("%s: got exit code %d and the output %q, %q, want exit code %d and no output",
					command, code, &stdout, &stderr, want)
			}
		})
	}
}

func TestPlanReadsFilesAsVetDoes(t *testing.T) {
	before := fileOf(t, "old.yaml", "token: pul-a\npolling_interval: 1m\n")
	const after = "token: pul-a\npolling_interval: 10m\n"
	pipe := filepath.Join(t.TempDir(), "pipe")
	noError(t, syscall.Mkfifo(pipe, 0o600))
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte(after), 0o600) }()
	for name, got := range map[string]output{
		"standard input": cmwaReads(after, nil, "plan", before, "-"),
		"a pipe":         cmwa(nil, "plan", before, pipe),
	} {
		if got.code != exitChanges || !strings.Contains(got.stdout, "polling_interval  1m -> 10m") || got.stderr != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	noError(t, <-written)
}
