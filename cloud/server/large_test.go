package server

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// The size of the database of BenchmarkServerLarge. The stack that it reads has manyUpdates of the updates, and its
// update 1 has manyEvents of the events.
const (
	largeStacks  = 10_000
	largeUpdates = 200_000
	largeEvents  = 1_000_000
	manyUpdates  = 10_000
	manyEvents   = 100_000
	batchEvents  = 30 // events in a batch
)

// BenchmarkServerLarge makes the calls of pulumi stack ls, stack history and stack history events in a large database.
// Each takes less than 100 ms of processor time.
func BenchmarkServerLarge(b *testing.B) {
	w := newWorld(b)
	loadLarge(w)
	for name, path := range map[string]string{
		"stack":         project + "/s",
		"stack ls":      "/api/user/stacks",
		"stack ls, tag": "/api/user/stacks?tagName=number&tagValue=77",
		"stack ls, middle page": "/api/user/stacks?continuationToken=" + writeStackToken(store.Stack{
			Organization: "organization", Project: "project", Name: "copy5000"}),
		"stack history":           project + "/s/updates?pageSize=10&page=1",
		"stack history, last":     project + "/s/updates?pageSize=10&page=1000",
		"stack history events":    project + "/s/update/update1/events",
		"events, last page":       project + "/s/update/update1/events?continuationToken=" + fmt.Sprint(manyEvents-100),
		"updates/latest":          project + "/s/updates/latest",
		"updates/latest/previews": project + "/s/updates/latest/previews",
	} {
		b.Run(name, func(b *testing.B) {
			measure(b, func() {
				if got := w.ask(w.user, "GET", path, nil); got.code != 200 {
					b.Fatalf("%d %s", got.code, got.body)
				}
			})
		})
	}
}

// measure reports the processor time of a call. More than 100 ms are an error.
func measure(b *testing.B, call func()) {
	b.Helper()
	before, calls := processTime(b), 0
	for b.Loop() {
		calls++
		call()
	}
	mean := (processTime(b) - before) / time.Duration(calls)
	b.ReportMetric(float64(mean.Microseconds())/1000, "cpu-ms/op")
	if mean > 100*time.Millisecond {
		b.Errorf("a call takes %s of processor time", mean)
	}
}

// processTime returns the processor time of this process. Other processes do not change it.
func processTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func loadLarge(w *world) {
	w.t.Helper()
	w.stack("s")
	const numbers = `WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d) `
	const update = `INSERT INTO updates (id, stack, kind, dry_run, status, version, requester, message, environment,
		config, changes, created, started, ended) `
	const values = `'update', 0, 'succeeded', %s, 'local', 'message',
		'{"pulumi.version":"v3.259.0","git.head":"%040d"}',
		'{"project:key":{"string":"value"}}', '{"same":5}', n, n, n `
	w.sql(
		fmt.Sprintf(numbers, largeStacks-1)+`INSERT INTO stacks (id, organization, project, name, created, secret_key,
				version, updated, resources)
			SELECT 'copy' || n, organization, project, 'copy' || n, created, secret_key, 1, n, 5
			FROM stacks, numbers WHERE name = 's'`,
		`INSERT INTO stack_tags (stack, name, value) SELECT id, 'number', rowid % 100 FROM (
			SELECT id, row_number() OVER (ORDER BY id) AS rowid FROM stacks)`,
		fmt.Sprintf(numbers, manyUpdates)+update+`SELECT 'update' || n, id, `+fmt.Sprintf(values, "n", 1)+
			`FROM stacks, numbers WHERE name = 's'`,
		fmt.Sprintf(numbers, (largeUpdates-manyUpdates)/(largeStacks-1))+update+`SELECT id || '-' || n, id, `+
			fmt.Sprintf(values, "n", 1)+`FROM stacks, numbers WHERE name <> 's'`,
	)
	err := w.server.db.Write(w.t.Context(), func(t *store.Tx) error {
		for first := int64(0); first < manyEvents; first += batchEvents {
			if err := t.AddEvents("update1", eventBatch(w, first)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.sql(`INSERT INTO event_batches (update_id, first, hash, last, received, events)
		SELECT u.id, b.first, b.hash, b.last, b.received, b.events FROM updates u, event_batches b
			WHERE u.version = 1 AND u.id <> 'update1' AND b.update_id = 'update1'
				AND b.first < 4 * ` + fmt.Sprint(batchEvents))
	if events := w.count(`SELECT sum(last - first + 1) FROM event_batches`); events < largeEvents {
		w.t.Fatalf("%d events are loaded", events)
	}
}

// eventBatch returns a batch of events of the size that pulumi sends for an update of a resource.
func eventBatch(w *world, first int64) store.EventBatch {
	w.t.Helper()
	var all []object
	for i := range int64(batchEvents) {
		urn := fmt.Sprintf("urn:pulumi:s::project::a:b:C::resource-%d", first+i)
		all = append(all, object{"sequence": first + i, "timestamp": 1_700_000_000, "resourcePreEvent": object{
			"metadata": object{"op": "same", "urn": urn, "type": "a:b:C", "old": object{"urn": urn, "inputs": object{
				"first": "value", "second": urn}}, "new": object{"urn": urn, "inputs": object{"first": "value"}}}}})
	}
	text, err := json.Marshal(all)
	if err != nil {
		w.t.Fatal(err)
	}
	hash := sha256.Sum256(text)
	return store.EventBatch{
		First: first, Last: first + batchEvents - 1, Hash: hash[:], Received: time.Now(), Events: objects.Pack(text),
	}
}
