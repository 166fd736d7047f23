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

func TestAFileThatStaysEmptyIsRefusedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content, path := "token: pul-a\n", "agent.yaml"
		wanted := 0
		var log strings.Builder
		f := reconcile.NewReloader(reconcile.ReloaderParts{
			Find:  func() (schema.Source, error) { return schema.Source{Path: path, Content: []byte(content)}, nil },
			Watch: func(...string) {}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		f.Deliver(func(reconcile.Desired) { wanted++ })
		look := func(refused bool, again time.Duration) {
			t.Helper()
			if err := f.Reload(); (err != nil) != refused || f.RecheckAfter() != again {
				t.Errorf("looking says %v and asks for another look in %s", err, f.RecheckAfter())
			}
		}
		look(false, 0)
		content = ""
		look(false, 2*time.Second)
		time.Sleep(2 * time.Second)
		look(true, 2*time.Second)
		if view := f.View(); view.Rejection == nil || !strings.Contains(view.Rejection.Reason, "gone, or empty") || !strings.Contains(log.String(), "gone, or empty") {
			t.Errorf("the view is %+v, the log\n%s", view, log.String())
		}
		content = "token: pul-a\n"
		look(false, 0)
		if view := f.View(); view.Rejection != nil || view.Generation != 1 || wanted != 1 {
			t.Errorf("after its return the view is %+v", view)
		}
		content, path = "", "" // no file any more, in any of the documented places
		look(false, 2*time.Second)
		time.Sleep(5 * time.Second)
		look(true, 0)
	})
}
