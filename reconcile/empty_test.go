package reconcile_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/schema"
)

func TestReloaderEmptyFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content, path := "token: pul-a\n", "agent.yaml"
		wanted := 0
		var log strings.Builder
		f := reconcile.NewReloader(reconcile.ReloaderParts{
			Find:  func() (schema.Source, error) { return schema.Source{Path: path, Content: []byte(content)}, nil },
			Watch: func(...string) {}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		f.Deliver(func(reconcile.Desired) { wanted++ })
		reload := func(rejected bool, again time.Duration) {
			t.Helper()
			if err := f.Reload(); (err != nil) != rejected || f.RecheckAfter() != again {
				t.Errorf("Reload returned the error %v, RecheckAfter %s; want an error: %v, and %s", err,
					f.RecheckAfter(), rejected, again)
			}
		}
		reload(false, 0)
		content = ""
		reload(false, 2*time.Second)
		time.Sleep(2 * time.Second)
		reload(true, 2*time.Second)
		if view := f.State(); view.Rejection == nil || !strings.Contains(view.Rejection.Reason, "missing or empty") ||
			!strings.Contains(log.String(), "missing or empty") {
			t.Errorf("the state is %+v, the log\n%s", view, log.String())
		}
		content = "token: pul-a\n"
		reload(false, 0)
		if view := f.State(); view.Rejection != nil || view.Generation != 1 || wanted != 1 {
			t.Errorf("after the content is restored the state is %+v, want generation 1, delivered once", view)
		}
		content, path = "", "" // no file at any search path
		reload(false, 2*time.Second)
		time.Sleep(5 * time.Second)
		reload(true, 0)
	})
}
