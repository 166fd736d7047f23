package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// commandLine runs one command line of the program within the test process.
func commandLine(environ []string, args ...string) (code int, stdout, stderr string) {
	var out, wrong bytes.Buffer
	code = execute(context.Background(), context.Background(), args,
		stdio{environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &wrong})
	return code, out.String(), wrong.String()
}

// fileOf writes a file to a new temporary directory of the test.
func fileOf(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
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
	after := "token: pul-a\npolling_interval: 10m\n"
	for name, args := range map[string][]string{
		"standard input":      {before, "-"},
		"flags behind files":  {before, "-", "--format", "text"},
		"flags between files": {before, "--format=text", "-"},
		"behind --":           {"--", before, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			ctx := t.Context()
			code := execute(ctx, ctx, append([]string{"plan"}, args...),
				stdio{nil, strings.NewReader(after), &stdout, &stderr})
			if code != 2 || !strings.Contains(stdout.String(), "polling_interval  1m -> 10m") || stderr.Len() > 0 {
				t.Errorf("exit code %d, stderr %q, and\n%s", code, &stderr, &stdout)
			}
		})
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte(after), 0o600) }()
	if code, stdout, stderr := commandLine(nil, "plan", before, pipe); code != 2 || stderr != "" {
		t.Errorf("a pipe: exit code %d, %q, %q", code, stdout, stderr)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"standard input twice": {[]string{"-", "-"}, "name - once"},
		"a directory":          {[]string{before, filepath.Dir(before)}, "this is a directory"},
		"an unknown flag": {
			[]string{before, before, "--fromat", "json"}, "unknown flag --fromat: did you mean --format?",
		},
	} {
		if code, stdout, stderr := commandLine(nil, append([]string{"plan"}, c.args...)...); code != 1 ||
			stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q", name, code, stdout, stderr)
		}
	}
}
