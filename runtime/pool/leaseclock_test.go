package pool

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// renewals is a leaser that grants each renewal for a minute.
type renewals struct {
	runtime.Leaser
	count int
}

func (l *renewals) Renew(context.Context, *runtime.Job, bool) (time.Duration, error) {
	l.count++
	return time.Minute, nil
}

// TestLeaseSuspend checks the clocks of a lease of one minute on a machine that is suspended for a
// time: the monotonic clock stops, and the wall clock does not.
func TestLeaseSuspend(t *testing.T) {
	for name, c := range map[string]struct {
		suspended time.Duration // after ten seconds; a negative time sets the wall clock back
		renewed   int           // two seconds later
		stopped   bool
	}{
		"not suspended":               {0, 0, false},
		"until a renewal is due":      {15 * time.Second, 1, false},
		"until the work must stop":    {35 * time.Second, 0, true},
		"until the lease has expired": {time.Hour, 0, true},
		"wall clock is set back":      {-time.Hour, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leaser := &renewals{}
				r := &jobRun{job: &runtime.Job{}, lease: lease{leaser: leaser}}
				r.named.Store(slog.New(slog.DiscardHandler))
				r.endReports = func(error) {}
				r.setLeaseEnd(time.Now().Add(time.Minute))
				ctx, end := context.WithCancel(t.Context())
				var reason error
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					r.renewLease(ctx, func(cause error) { reason = cause })
				}()

				time.Sleep(10 * time.Second)
				r.mu.Lock()
				r.lease.wall = r.lease.wall.Add(-c.suspended)
				r.mu.Unlock()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if stopped := errors.Is(reason, errLeaseExpires); leaser.count != c.renewed || stopped != c.stopped {
					t.Errorf("%d renewals, and the work was stopped for %v; want %d renewals, stopped: %t",
						leaser.count, reason, c.renewed, c.stopped)
				}
				end()
				<-ended
			})
		})
	}
}
