package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/runtimetest"
)

func TestRecoveryListsRecords(t *testing.T) {
	begin := func(targets ...string) (*runtimetest.Journal, reconcile.Recovery) {
		journal := runtimetest.NewJournal()
		for _, target := range targets {
			err := journal.Add(t.Context(), runtime.Record{
				Job: "job-of-" + target, Pool: "key", PoolName: "of-" + target, Claimed: time.Now(), CA: "certificates",
				Identity: runtime.Identity{Service: "http://service", Target: target}, Stage: runtime.RecordClaimed,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		engine := runtimetest.NewExecutor()
		return journal, reconcile.Recovery{
			Agent: "agent-1", Record: &targetRecord{}, Journal: journal, Supported: []string{"docker", "process"},
			Log:      slog.New(slog.DiscardHandler),
			Executor: func(context.Context, string) (runtime.Executor, func(), error) { return engine, func() {}, nil },
		}
	}

	t.Run("a pool of a record is a leftover, with the certificates of the claim", func(t *testing.T) {
		_, recovery := begin("docker", "moon")
		specs, err := recovery.List(t.Context(), nil)
		if err != nil || len(specs) != 1 || specs[0].Name != "of-docker" || !specs[0].Leftover ||
			specs[0].Tuning.CA != "certificates" || specs[0].Tuning.RequestTimeout <= 0 {
			t.Errorf("the pools are %+v, the error is %v", specs, err)
		}
	})
	t.Run("records that cannot be listed are an error", func(t *testing.T) {
		journal, recovery := begin()
		journal.Fail(runtimetest.ListRecords, 1, errors.New("input/output error"))
		if _, err := recovery.List(t.Context(), nil); err == nil {
			t.Error("List returned no error")
		}
	})
}
