package doctor

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

var update = flag.Bool("update", false, "write golden files")

// delayed returns a check function that returns result after a delay, or a failure if its
// context ends before.
func delayed(took time.Duration, result selfcheck.Result) func(context.Context) selfcheck.Result {
	return func(ctx context.Context) selfcheck.Result {
		select {
		case <-time.After(took):
			return result
		case <-ctx.Done():
			return selfcheck.Result{Level: selfcheck.LevelFailed, Message: "too late"}
		}
	}
}

func newCheck(pool, name, needs string, run func(context.Context) selfcheck.Result) Check {
	return Check{Pool: pool, Check: selfcheck.Check{Name: name, Needs: needs, Run: run}}
}

// result is the result of a run.
type result struct {
	outcomes []Outcome
	waiting  []string
	passed   bool
	took     time.Duration
}

func run(ctx context.Context, checks []Check) (r result) {
	started := time.Now()
	r.passed = Run(ctx, checks, Reporter{
		Outcome: func(o Outcome) { r.outcomes = append(r.outcomes, o) },
		Waiting: func(left []Check) { r.waiting = append(r.waiting, names(left)) },
	})
	r.took = time.Since(started)
	return r
}

func (r result) levels() (levels []string) {
	for _, o := range r.outcomes {
		levels = append(levels, o.Name+" "+string(o.Level))
	}
	return levels
}

func TestRun(t *testing.T) {
	ok := selfcheck.Passed("good")
	bad := selfcheck.Result{Level: selfcheck.LevelFailed, Message: "bad", Hint: "correct it"}
	warned := selfcheck.Result{Level: selfcheck.LevelWarning, Message: "odd"}
	bubble := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	bubble("runs checks concurrently and reports them in order", func(t *testing.T) {
		r := run(t.Context(), []Check{
			newCheck("", "a", "", delayed(3*time.Second, ok)), newCheck("", "b", "", delayed(time.Second, warned)),
			newCheck("", "c", "", delayed(2500*time.Millisecond, ok)),
		})
		if got := r.levels(); !slices.Equal(got, []string{"a ok", "b warning", "c ok"}) || r.took != 3*time.Second ||
			!r.passed {
			t.Errorf("got %v in %s, passed %v, want 3s, passed", got, r.took, r.passed)
		}
		if r.outcomes[1].Duration != time.Second || !slices.Equal(r.waiting, []string{"a, c"}) {
			t.Errorf("b took %s, waiting for %q, want 1s and a, c", r.outcomes[1].Duration, r.waiting)
		}
	})
	bubble("skips checks that need a failed check", func(t *testing.T) {
		never := func(context.Context) selfcheck.Result {
			t.Error("a check ran although the check it needs failed")
			return ok
		}
		r := run(t.Context(), []Check{
			newCheck("one", "a", "", delayed(time.Second, bad)), newCheck("one", "b", "a", never),
			newCheck("one", "c", "b", never),
			newCheck("two", "a", "", delayed(time.Second, warned)), newCheck("two", "b", "a", delayed(0, ok)),
		})
		want := []string{"a failed", "b skipped", "c skipped", "a warning", "b ok"}
		if got := r.levels(); !slices.Equal(got, want) || r.passed ||
			!strings.Contains(r.outcomes[2].Message, "because b did not pass") {
			t.Errorf("got %v, passed %v, %+v, want %v, not passed", got, r.passed, r.outcomes[2], want)
		}
	})
	bubble("fails a check that does not return in time", func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		r := run(t.Context(), []Check{
			newCheck("", "hangs", "", func(context.Context) selfcheck.Result { <-release; return ok }),
			newCheck("", "late", "", delayed(time.Hour, ok)),
		})
		if got := r.levels(); !slices.Equal(got, []string{"hangs failed", "late failed"}) ||
			r.took != checkLimit+returnLimit || r.passed {
			t.Errorf("got %v in %s, passed %v, want two failures", got, r.took, r.passed)
		}
		if r.outcomes[0].Message != "no result within 30s" || r.outcomes[1].Message != "too late" {
			t.Errorf("%+v", r.outcomes)
		}
	})
	bubble("fails a check that panics, and does not show the value of the panic", func(t *testing.T) {
		fault := func(context.Context) selfcheck.Result { panic("pul-0123456789") }
		r := run(t.Context(), []Check{newCheck("", "a", "", fault)})
		if r.passed || r.outcomes[0].Level != selfcheck.LevelFailed ||
			strings.Contains(fmt.Sprint(r.outcomes), "pul-") {
			t.Errorf("%+v", r.outcomes)
		}
	})
	bubble("skips the remaining checks after an interrupt", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		r := run(ctx, []Check{
			newCheck("", "a", "", delayed(time.Second, ok)), newCheck("", "b", "", delayed(time.Minute, ok)),
			newCheck("", "c", "b", delayed(0, ok)),
		})
		if got := r.levels(); !slices.Equal(got, []string{"a ok", "b skipped", "c skipped"}) ||
			r.took != 2*time.Second || r.passed {
			t.Errorf("got %v in %s, passed %v, want one result after 2s", got, r.took, r.passed)
		}
	})
	bubble("limits concurrent checks", func(t *testing.T) {
		var checks []Check
		for i := range 10 * maxConcurrent {
			checks = append(checks, newCheck(fmt.Sprint(i), "a", "", delayed(time.Second, ok)),
				newCheck(fmt.Sprint(i), "b", "a", delayed(time.Second, ok)))
		}
		if r := run(t.Context(), checks); len(r.outcomes) != len(checks) || r.took != 20*time.Second {
			t.Errorf("%d outcomes in %s, want %d in 20s", len(r.outcomes), r.took, len(checks))
		}
	})
}

func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"one\nline\t of \x1b[31mtext":                "one line of ?[31mtext",
		`"http://a:b c@proxy:x": http://a:b@proxy:x`: `"http://[secret]@proxy:x": http://[secret]@proxy:x`,
		"https://host:8080/of@somebody, me@host":     "https://host:8080/of@somebody, me@host",
		"the token pul-0123456789 is not known":      "the token [secret] is not known",
		"Bearer eyJhbGciOi.eyJzdWIiOi.c2ln, no":      "Bearer [secret], no",
		"pul-x and x[2Jpul-0123456789":               "pul-x and x[2J[secret]",
	} {
		if got := shown(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := shown(strings.Repeat("ä", 1<<20)); len(got) > maxText || !strings.HasSuffix(got, "ä …") {
		t.Errorf("a long text becomes %d bytes, want at most %d", len(got), maxText)
	}
}

// golden compares text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("%s differs (to write it, run the test with -update): %v\ngot\n%s\nwant\n%s", path, err, got, want)
	}
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := []Check{
			newCheck("", "configuration", "",
				delayed(12*time.Millisecond, selfcheck.Passed("agent.yaml is valid"))),
			newCheck("", "free-disk", "", delayed(0,
				selfcheck.Warned("free disk is short").WithHint("remove something"))),
			newCheck("default", "service-connection", "", delayed(1500*time.Millisecond, selfcheck.Result{
				Level: selfcheck.LevelFailed, Message: "cannot connect:\n\x1b[2Jpul-0123456789",
				Hint: "correct service_url",
			})),
			newCheck("default", "service-token", "service-connection", nil),
		}
		texts := func(name string, to Output, checks []Check) {
			var text, progress bytes.Buffer
			to.Text, to.Progress, to.Terminal, to.Version = &text, &progress, true, "v1.2.3"
			passed, err := Report(t.Context(), checks, to)
			if err != nil || passed {
				t.Errorf("%s: %v, passed %v", name, err, passed)
			}
			golden(t, name, text.String()+progress.String())
		}
		texts("one-pool.txt", Output{}, checks)
		texts("colours.txt", Output{Colours: true}, checks)
		texts("two-pools.txt", Output{}, append(slices.Clone(checks),
			newCheck("team-a", "service-token", "", delayed(4*time.Second, selfcheck.Passed("accepted")))))
		texts("document.json", Output{JSON: true}, checks)
	})
	t.Run("full disk is an error", func(t *testing.T) {
		checks := []Check{newCheck("", "a", "", delayed(0, selfcheck.Passed("good")))}
		for _, asJSON := range []bool{false, true} {
			if passed, err := Report(t.Context(), checks, Output{Text: fullDisk{}, JSON: asJSON}); err == nil ||
				passed {
				t.Errorf("JSON %v: %v, passed %v", asJSON, err, passed)
			}
		}
	})
}

// fullDisk is a file on a full disk.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
