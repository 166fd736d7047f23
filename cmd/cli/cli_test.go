package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestExit(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"success":            {nil, 0, ""},
		"a request for help": {fmt.Errorf("parse: %w", flag.ErrHelp), 0, ""},
		"a failure":          {errors.New("no disk"), 1, "cmwa: no disk\n"},
		"a usage error":      {Usagef("no %s", "file"), 2, "cmwa: no file\n"},
		"a wrapped usage error": {
			fmt.Errorf("vet: %w", Usage(errors.New("no file"))), 2, "cmwa: vet: no file\n",
		},
		"a usage error with another code": {UsageError{Usagef("no %s", "file"), 1}, 1, "cmwa: no file\n"},
		"several problems": {
			Usagef("a.yaml: wrong\n  hint: do\nb.yaml: wrong"), 2, "cmwa: a.yaml: wrong\n" +
				"  hint: do\ncmwa: b.yaml: wrong\n",
		},
		"an ExitError, which prints nothing": {ExitError(3), 3, ""},
		"an ExitError in a usage error":      {Usage(ExitError(3)), 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := Exit(&stderr, "cmwa", test.err); code != test.code || stderr.String() != test.stderr {
				t.Errorf("exit code %d, stderr %q, want %d, %q", code, &stderr, test.code, test.stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	if v := Version(); v != "dev" {
		t.Errorf("without a version of the build, Version returns %q, want dev", v)
	}
	version = "v1.2.3"
	defer func() { version = "" }()
	if v := Version(); v != "v1.2.3" {
		t.Errorf("Version returns %q, want v1.2.3", v)
	}
}

func TestVersionText(t *testing.T) {
	version, commit, date = "v1.2.3", "0123abc", "2026-01-02T03:04:05Z"
	defer func() { version, commit, date = "", "", "" }()
	want := "cmwa v1.2.3\ncommit: 0123abc\ndate: 2026-01-02T03:04:05Z\ngo: " + runtime.Version() +
		"\nplatform: " + runtime.GOOS + "/" + runtime.GOARCH + "\n"
	if got := VersionText("cmwa"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	version, commit, date = "", "", ""
	if got := VersionText("cmwa"); !regexp.MustCompile(`^cmwa dev\ncommit: \S+\ndate: \S+\n`).MatchString(got) {
		t.Errorf("in a build without -X flags, VersionText returns %q", got)
	}
}

func TestSignals(t *testing.T) {
	thirds := make(chan os.Signal, 3)
	first, second := Signals(func(s os.Signal) { thirds <- s }, syscall.SIGUSR1)
	for i, ctx := range []context.Context{first, second} {
		if ctx.Err() != nil {
			t.Fatalf("context %d has ended before its signal", i+1)
		}
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
			t.Fatalf("signal %d has not cancelled its context", i+1)
		}
	}
	for range 2 {
		if len(thirds) > 0 {
			t.Fatal("a signal was reported before it was sent")
		}
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-thirds:
			if s != syscall.SIGUSR1 {
				t.Errorf("the signal is %s, want SIGUSR1", s)
			}
		case <-time.After(time.Minute):
			t.Fatal("a signal after the second one is not reported")
		}
	}
}

func TestAwait(t *testing.T) {
	t.Run("returns the result", func(t *testing.T) {
		failure := errors.New("no disk")
		got, err := Await(t.Context(), func() (string, error) { return "part", failure })
		if got != "part" || !errors.Is(err, failure) {
			t.Errorf("Await returns %q, %v, want the result of the function", got, err)
		}
	})
	t.Run("returns the cause of a context that is cancelled", func(t *testing.T) {
		cause := errors.New("too late")
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		defer close(release)
		got, err := Await(ctx, func() (string, error) {
			cancel(cause)
			<-release
			return "late", nil
		})
		if got != "" || !errors.Is(err, cause) {
			t.Errorf("Await returns %q, %v, want the cause of the context", got, err)
		}
	})
}
