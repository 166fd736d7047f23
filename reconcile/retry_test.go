package reconcile_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Retry counts how often it is called.
func (p *fakePool) Retry() { p.set(func() { p.retries++ }) }

func TestLoop(t *testing.T) {
	t.Run("Retry builds again what failed and retries every pool", func(t *testing.T) {
		inHouse(t, func(t *testing.T, h *house) {
			h.fail("late", errors.New("cannot reach the engine"))
			h.want(1, pool("a", "one", 1), pool("late", "one", 1))
			pass(10 * time.Minute)
			h.loop.Retry()
			synctest.Wait()
			tries := h.tries["late"]
			if retries := h.pool("a").retries; retries != 1 {
				t.Errorf("pool a was retried %d times, want 1", retries)
			}
			h.fail("late", nil)
			h.loop.Retry()
			synctest.Wait()
			if h.claiming() != "a one 1, late one 1" || h.tries["late"] != tries+1 {
				t.Errorf("claiming are %s after %d more builds", h.claiming(), h.tries["late"]-tries)
			}
		})
	})
}

func TestCheck(t *testing.T) {
	inBubble(t, func(t *testing.T, d *desk) {
		check := func(what string, edit func(*desk), want string) {
			t.Helper()
			edit(d)
			_ = d.heard()
			_ = d.follower.Check()
			if text := d.heard(); !strings.Contains(text, want) || strings.Count(text, "\n") != 1 {
				t.Errorf("%s: the log says\n%s\nwant one line with %q", what, text, want)
			}
		}
		d.look(d.renamed(settled))
		same := func(*desk) {}
		check("nothing has changed", same, `level=INFO msg="configuration checked: no change" component=config generation=1`)
		check("an edit", d.renamed(settled+"log_level: debug\n"), `msg="configuration changed"`)
		check("a mistake", d.renamed("token: [\n"), `msg="configuration refused`)
		check("the same mistake", same, `level=WARN msg="configuration checked: file is still refused, no change"`)
		check("the mistake is undone", d.renamed(settled+"log_level: debug\n"), "again the one in force")
		check("a half-written file", d.write("token: pul-c4n4ry\n"), "file is being written, change waits")
		check("an empty file", d.write(""), "file is being written, change waits")
		check("it is whole", func(d *desk) { d.write(settled + "log_level: debug\n")(d) }, "no change")
	})
}
