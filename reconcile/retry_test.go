package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema"
)

// Retry counts how often it is called.
func (p *fakePool) Retry() { p.set(func() { p.retries++ }) }

func TestLoop(t *testing.T) {
	withLoop(t, "Retry builds failed pools again and calls Retry of every pool", func(h *loopTest) {
		h.fail("late", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1), pool("late", "one", 1))
		pass(10 * time.Minute)
		h.loop.Retry()
		synctest.Wait()
		tries := h.tries["late"]
		if retries := h.pool("a").retries; retries != 1 {
			h.Errorf("pool a was retried %d times, want 1", retries)
		}
		h.fail("late", nil)
		h.loop.Retry()
		synctest.Wait()
		h.wantClaiming("a one 1, late one 1")
		h.wantTries("late", tries+1)
	})
	withLoop(t, "StopJob stops the job in the pool that has it", func(h *loopTest) {
		h.fail("late", errors.New("cannot reach the engine"))
		h.want(1, pool("a", "one", 1), pool("b", "one", 1), pool("late", "one", 1))
		if !h.loop.StopJob("b") || h.loop.StopJob("another") {
			h.Error("StopJob does not report whether a pool has the job")
		}
		if a, b := h.pool("a").jobStops, h.pool("b").jobStops; a != 0 || b != 1 {
			h.Errorf("the jobs of the pools a and b were stopped %d and %d times, want 0 and 1", a, b)
		}
	})
}

// TestFrozen checks that the Pod template at its default path is watched, and reported as
// frozen if it is mounted by itself.
func TestFrozen(t *testing.T) {
	withReloader(t, "the Pod template is watched, and is frozen", func(d *reloadTest) {
		d.frozen, d.named[schema.DefaultPodTemplateFile] = schema.DefaultPodTemplateFile, "{}"
		d.wantReload("the first file", write("token: a\ndeploy_target: kubernetes\n"), 1)
		if files := d.reloader.State().Frozen; !slices.Equal(files, []string{schema.DefaultPodTemplateFile}) {
			d.Errorf("the frozen files are %v", files)
		}
		if !slices.Contains(d.watched, schema.DefaultPodTemplateFile) {
			d.Errorf("the watched files are %v, want the Pod template among them", d.watched)
		}
	})
}

// TestFollow requests checks. The second and the third reload find the file at a frozen path: a
// path that is itself a mount, such as a file of a ConfigMap with subPath. The other reloads
// find it at another path.
func TestFollow(t *testing.T) {
	const free, frozen = "/etc/cmwa/agent.yaml", "/proc"
	var log strings.Builder // Follow alone writes it until it has ended
	reloads := make(chan struct{})
	place := free
	reloader := reconcile.NewReloader(reconcile.ReloaderParts{
		Find: func() (schema.Source, error) {
			reloads <- struct{}{}
			return schema.Source{Path: place, Content: []byte("token: a\ndeploy_target: process\n")}, nil
		},
		Watch: func(...string) {}, Frozen: func(path string) bool { return path == frozen },
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls []string // Follow alone appends to it until it has ended
	asked, ended := make(chan os.Signal), make(chan error, 1)
	go func() {
		ended <- reloader.Follow(ctx, reconcile.Triggers{
			Asked: asked, BeforeCheck: func() { calls = append(calls, "before") },
			AfterCheck: func() { calls = append(calls, "after") },
		})
	}()
	<-reloads
	for _, next := range []string{frozen, frozen, free} {
		asked <- syscall.SIGHUP // received after the end of the previous reload
		if files := reloader.State().Frozen; (place == frozen) != slices.Equal(files, []string{frozen}) {
			t.Errorf("at %s the frozen files are %v", place, files)
		}
		place = next
		<-reloads
	}
	asked <- syscall.SIGHUP
	<-reloads
	if files := reloader.State().Frozen; len(files) > 0 {
		t.Errorf("with the file at %s again the frozen files are %v", free, files)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Count(text, "mounted by itself") != 1 || !strings.Contains(text, "file="+frozen) {
		t.Errorf("the frozen file is logged as\n%s", text)
	}
	if checked := strings.Count(log.String(), "configuration checked: no change"); checked != 4 {
		t.Errorf("after 4 requests %d checks without a change are logged, want 4", checked)
	}
	if want := strings.Repeat("before after ", 4); strings.Join(calls, " ")+" " != want {
		t.Errorf("the calls are %v, want before and after 4 times", calls)
	}
	if generation := reloader.State().Generation; generation != 1 {
		t.Errorf("the generation is %d, want it to stay 1", generation)
	}
}

func TestCheck(t *testing.T) {
	withReloader(t, "each check logs one line", func(d *reloadTest) {
		check := func(what string, edit func(*reloadTest), want string) {
			d.Helper()
			edit(d)
			_ = d.takeLog()
			_ = d.reloader.Check()
			if text := d.takeLog(); !strings.Contains(text, want) || strings.Count(text, "\n") != 1 {
				d.Errorf("%s: the log is\n%s\nwant one line with %q", what, text, want)
			}
		}
		d.reload(renamed(settled))
		same := func(*reloadTest) {}
		check("nothing has changed", same,
			`level=INFO msg="configuration checked: no change" component=config generation=1`)
		check("an edit", renamed(settled+"log_level: debug\n"), `msg="configuration reloaded"`)
		check("a mistake", renamed("token: [\n"), `msg="configuration rejected`)
		check("the same mistake", same, `level=WARN msg="configuration checked: file is still rejected, no change"`)
		check("the mistake is undone", renamed(settled+"log_level: debug\n"), "valid again, no change")
		check("a half-written file", write("token: pul-c4n4ry\n"), "file is being written, change waits")
		check("an empty file", write(""), "file is being written, change waits")
		check("the complete file", write(settled+"log_level: debug\n"), "no change")
	})
}
