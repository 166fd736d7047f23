package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// limited returns a change of the options that sets the retention.
func limited(r Retention) func(*Options) { return func(o *Options) { o.Retention = r } }

// size returns the size of the database on the disk, with its write-ahead log.
func (w *world) size() (total int64) {
	w.t.Helper()
	for _, name := range []string{"cloud.db", "cloud.db-wal"} {
		info, err := os.Stat(filepath.Join(w.directory, name))
		if err != nil {
			w.t.Fatal(err)
		}
		total += info.Size()
	}
	return total
}

// numbered returns one line for each number from first to last. Each line has width bytes,
// including its newline.
func numbered(first, last, width int) (lines []string) {
	for i := first; i <= last; i++ {
		lines = append(lines, fmt.Sprintf("%0*d\n", width-1, i))
	}
	return lines
}

// started queues a deployment, claims its job, and reports that its first step runs.
func (w *world) started(p pool, at string) (*claimed, string) {
	w.t.Helper()
	id := w.deploy(at, steps(1))
	c := w.mustClaim(p)
	c.status(0, running)
	return c, id
}

// mustLog sends a batch that must be accepted.
func (c *claimed) mustLog(step, offset int, lines ...string) {
	c.w.t.Helper()
	if got := c.logs(step, offset, lines...); got != 200 {
		c.w.t.Fatalf("lines at offset %d: %d", offset, got)
	}
}

func TestStoreBatch(t *testing.T) {
	t.Parallel()
	t.Run("a log at its limit keeps its beginning and its end, and the runner gets no error", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MaxLogBytes: 20_000}))
		p, at := w.pool("p"), w.stack("s")
		c, id := w.started(p, at)
		for offset := 0; offset < 10_000; offset += 100 {
			c.mustLog(0, offset, numbered(offset, offset+99, 20)...)
			c.mustLog(0, offset, numbered(offset, offset+99, 20)...) // a retry after a lost response
		}
		c.mustLog(0, 100, numbered(100, 199, 20)...) // a retry of the beginning
		c.mustLog(0, 5000, numbered(5000, 5099, 20)...)
		c.mustLog(0, 10_000, "error: the last line\n")
		c.status(0, succeeded)
		c.runs(1, 1)

		log, complete := w.log(at, id)
		first, after, found := strings.Cut(log, "[1")
		if !complete || !found || !strings.HasPrefix(log, "[Setup]"+strings.Join(numbered(0, 99, 20), "")) ||
			!strings.Contains(after, strings.Join(numbered(9900, 9999, 20), "")+"error: the last line\n[step 1]") {
			t.Errorf("complete %v: the log is %.200s … %.200s", complete, first, after)
		}
		if len(log) < 8_000 || len(log) > 20_000 {
			t.Errorf("%d bytes are stored, want nearly 20000", len(log))
		}
		kept := strings.Count(log, "\n") - 3 // without the notice, the last line, and the line of step 1
		notice := fmt.Sprintf("%d bytes in %d lines are not stored: the limit of a step's log is 20000 bytes",
			20*(10_000-kept), 10_000-kept)
		if !strings.Contains(log, notice) {
			t.Errorf("the log has no %q", notice)
		}
	})

	t.Run("one batch above the limit keeps its last lines", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MaxLogBytes: 1000}))
		p, at := w.pool("p"), w.stack("s")
		c, id := w.started(p, at)
		c.mustLog(0, 0, numbered(0, 999, 20)...)
		c.mustLog(0, 1000, strings.Repeat("x", 5000)+"\n")
		c.mustLog(0, 1001, "end\n")
		if log, _ := w.log(at, id); !strings.HasPrefix(log, "[Setup][") || !strings.HasSuffix(log, "]\nend\n") ||
			!strings.Contains(log, "[25001 bytes in 1001 lines are not stored") {
			t.Errorf("the log is %s", log)
		}
	})

	t.Run("lines beyond the end are not accepted as a retry", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MaxLogBytes: 1000}))
		c, _ := w.started(w.pool("p"), w.stack("s"))
		c.mustLog(0, 0, numbered(0, 999, 20)...)
		if got := c.logs(0, 500, numbered(500, 1000, 20)...); got != 400 {
			t.Errorf("a batch that ends after the log: %d", got)
		}
		if got := c.logs(0, 1001, "gap\n"); got != 400 {
			t.Errorf("a batch after a gap: %d", got)
		}
	})

	t.Run("the offsets of a reader stay exact", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MaxLogBytes: 10_000}))
		p, at := w.pool("p"), w.stack("s")
		c, id := w.started(p, at)
		for offset := 0; offset < 2000; offset += 20 {
			c.mustLog(0, offset, numbered(offset, offset+19, 20)...)
		}
		read := func(offset int) (page logPage) {
			w.want(200, w.user, "GET", fmt.Sprintf("%s/%s/logs?step=0&count=1&offset=%d", at, id, offset), nil, &page)
			return page
		}
		notices := 0
		for offset := 0; offset < 2000; {
			page := read(offset)
			if len(page.Lines) != 1 || page.NextOffset == nil {
				t.Fatalf("offset %d: %+v", offset, page)
			}
			if got := page.Lines[0].Line; strings.Contains(got, "not stored") {
				notices++
			} else if got != numbered(offset, offset, 20)[0] {
				t.Fatalf("offset %d is the line %q", offset, got)
			}
			offset = *page.NextOffset
		}
		page := read(1000) // by a reader that has seen the first 1000 lines
		want := fmt.Sprintf("[%d lines are not stored", *page.NextOffset-1000)
		if got := page.Lines[0].Line; notices != 1 || !strings.HasPrefix(got, want) {
			t.Errorf("%d notices; offset 1000 is %q, want %q", notices, got, want)
		}
	})

	t.Run("with less than MinFreeDisk, lines are not stored and the job goes on", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MinFreeDisk: 1000}))
		free := int64(5000)
		w.server.freeSpace = func(string) (int64, error) { return free, nil }
		p, at := w.pool("p"), w.stack("s")
		waiting := w.stack("waiting")
		c, id := w.started(p, at)
		queued := w.deploy(waiting, steps(1))
		c.mustLog(0, 0, "stored\n")
		free = 999
		c.mustLog(0, 1, "lost\n", "lost\n")
		c.mustLog(0, 1, "lost\n", "lost\n")
		c.mustLog(0, 3, "lost\n")
		got := w.ask(w.user, "POST", at, steps(1))
		if got.code != 507 || !strings.Contains(got.body, "--min-free-disk") {
			t.Errorf("a new deployment: %d %s", got.code, got.body)
		}
		if got := c.heartbeat(); got != 200 {
			t.Errorf("a heartbeat: %d", got)
		}
		other := w.mustClaim(p) // queued before the disk was nearly full
		if other.job.TypeSpecificID != queued || len(other.definition().Steps) != 2 {
			t.Errorf("claimed %+v", other.job)
		}
		free = 5000
		c.mustLog(0, 4, "stored again\n")
		free = 0
		c.mustLog(0, 5, "lost\n")
		c.status(0, succeeded)
		c.runs(1, 1)
		w.shows(at, id, succeeded, succeeded, succeeded)
		w.deployAfter(&free, at)
		want := "[Setup]stored\n[15 bytes in 3 lines are not stored: the disk of the service was nearly full " +
			"(--min-free-disk)]\nstored again\n[5 bytes in 1 line are not stored: "
		if log, complete := w.log(at, id); !complete || !strings.HasPrefix(log, want) {
			t.Errorf("complete %v: the log is %s", complete, log)
		}
	})
}

// deployAfter sets the free space of the disk to 5000 bytes, and deploys.
func (w *world) deployAfter(free *int64, at string) {
	w.t.Helper()
	*free = 5000
	w.deploy(at, steps(1))
}

// copies adds n copies of an ended deployment to its stack. They replace n real deployments,
// which would take longer.
func (w *world) copies(id string, n int) {
	w.t.Helper()
	var last int64
	w.read([]any{&last}, `SELECT max(seq) FROM deployments`)
	for _, statement := range []string{
		`WITH RECURSIVE copies (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM copies WHERE number < ?2)
				INSERT INTO deployments (id, job, stack, organization, pool, version, operation, status, ended,
				inherits, initiator, requester, created, modified, definition)
				SELECT hex(randomblob(16)), hex(randomblob(16)), stack, organization, pool,
					(SELECT deployments FROM stacks s WHERE s.id = stack) + number, operation, status, ended,
					inherits, initiator, requester, created, modified, definition
				FROM deployments, copies WHERE id = ?1`,
		`UPDATE stacks SET deployments = deployments + ?2
				WHERE id = (SELECT stack FROM deployments WHERE id = ?1)`,
		`INSERT INTO steps (deployment, number, name, status) SELECT seq, number, name, s.status
				FROM deployments d, steps s WHERE seq > ?2
				AND deployment = (SELECT seq FROM deployments WHERE id = ?1)`,
		`INSERT INTO batches (deployment, step, start, count, packed) SELECT seq, step, start, count, packed
				FROM deployments, batches WHERE seq > ?2
				AND deployment = (SELECT seq FROM deployments WHERE id = ?1)`,
	} {
		number := int64(n)
		if strings.Contains(statement, "seq >") {
			number = last
		}
		w.write(statement, id, number)
	}
}

// TestStoreBatchProperty stores random batches under random limits, and compares each
// line of the log with what was sent.
func TestStoreBatchProperty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, at := w.pool("p"), w.stack("s")
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.Int64Range(1, 1500).Draw(r, "limit")
		full := false
		w.server.options.Retention = Retention{MaxLogBytes: limit, MinFreeDisk: 1}
		w.server.freeSpace = func(string) (int64, error) { return map[bool]int64{false: 1}[full], nil }
		c, id := w.started(p, at)
		var sent []string
		for range rapid.IntRange(1, 10).Draw(r, "batches") {
			batch := numbered(len(sent), len(sent)+rapid.IntRange(0, 12).Draw(r, "lines"),
				rapid.IntRange(6, 40).Draw(r, "width"))
			full = rapid.IntRange(0, 4).Draw(r, "disk") == 0
			for range rapid.IntRange(1, 2).Draw(r, "tries") {
				c.mustLog(0, len(sent), batch...)
			}
			sent = append(sent, batch...)
		}

		// Read the log line by line. Each line is the line that was sent at this offset, or a
		// notice with the exact number of lines that are not stored.
		stored := int64(0)
		err := w.server.db.Read(t.Context(), func(t *store.Tx) error {
			j, _, err := asJob(t.JobOf(store.DeploymentJob, id))
			for offset := 0; err == nil && offset < len(sent); {
				var lines []cloud.LogLine
				var next int
				if lines, next, err = w.server.readLines(t, j, 0, offset, 1, pageBytes); err != nil {
					break
				}
				line, noun := lines[0].Text, map[bool]string{false: "lines", true: "line"}[next == offset+1]
				if !strings.HasPrefix(line, "[") {
					if line != sent[offset] || next != offset+1 {
						r.Fatalf("offset %d is %q, then %d; want %q", offset, line, next, sent[offset])
					}
					stored += int64(len(line))
				} else if want := fmt.Sprintf("[%d bytes in %d %s are", len(strings.Join(sent[offset:next], "")),
					next-offset, noun); !strings.HasPrefix(line, want) {
					r.Fatalf("offset %d is %q, want %q", offset, line, want)
				}
				offset = next
			}
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
		if stored > limit {
			r.Fatalf("%d bytes are stored, limit %d", stored, limit)
		}
		full = false
		w.want(200, w.user, "POST", at+"/"+id+"/cancel", nil, nil)
	})
}

func TestPrune(t *testing.T) {
	t.Parallel()
	t.Run("ended deployments beyond the limits of number and age are deleted", func(t *testing.T) {
		w := newWorld(t, limited(Retention{KeepDeployments: 3, KeepAge: 24 * time.Hour}))
		p, at, idle, busy := w.pool("p"), w.stack("s"), w.stack("idle"), w.stack("busy")
		run := func(at string) {
			w.deploy(at, steps(1))
			w.mustClaim(p).runs(0, 1)
		}
		run(idle)
		run(idle)
		for range 6 {
			run(at)
		}
		run(busy)
		active, id := w.started(p, busy) // version 2
		queued := w.deploy(busy, steps(1))
		for range 4 {
			w.deploy(busy, steps(1))
		}
		versions := func(at string) (all []int, total int) {
			var list struct {
				Deployments []deploymentView
				Total       int
			}
			w.want(200, w.user, "GET", at+"?pageSize=100", nil, &list)
			for _, d := range list.Deployments {
				all = append(all, d.Version)
			}
			return all, list.Total
		}
		check := func(after time.Duration, want, wantIdle, wantBusy string) {
			t.Helper()
			if err := w.server.prune(t.Context(), time.Now().Add(after)); err != nil {
				t.Fatal(err)
			}
			got, total := versions(at)
			gotIdle, _ := versions(idle)
			gotBusy, _ := versions(busy)
			if fmt.Sprint(got) != want || fmt.Sprint(gotIdle) != wantIdle || fmt.Sprint(gotBusy) != wantBusy ||
				total != len(got) {
				t.Errorf("after %s there are %v, %v and %v (total %d), want %s, %s and %s", after, got, gotIdle,
					gotBusy, total, want, wantIdle, wantBusy)
			}
		}
		check(time.Minute, "[6 5 4 3 2 1]", "[2 1]", "[7 6 5 4 3 2 1]") // within pruneDelay nothing is deleted
		check(time.Hour, "[6 5 4]", "[2 1]", "[7 6 5 4 3 2]")
		check(25*time.Hour, "[6]", "[2]", "[7 6 5 4 3 2]")
		check(1000*time.Hour, "[6]", "[2]", "[7 6 5 4 3 2]")
		w.shows(busy, id, running, running, notStarted)
		w.shows(busy, queued, notStarted, notStarted, notStarted)
		for _, path := range []string{"/version/1", "/version/1/logs"} {
			got := w.ask(w.user, "GET", at+path, nil)
			if path == "/version/1" && (got.code != 404 ||
				!strings.Contains(got.body, "it was deleted, because the service keeps the last 3 of a stack")) {
				t.Errorf("%s: %d %s", path, got.code, got.body)
			}
		}
		if got := w.ask(w.user, "GET", at+"/version/9", nil); got.code != 404 || strings.Contains(got.body, "deleted") {
			t.Errorf("a version that never existed: %d %s", got.code, got.body)
		}
		active.status(0, succeeded)
		active.runs(1, 1)
	})

	t.Run("with a KeepAge shorter than pruneDelay, deployments are kept for pruneDelay", func(t *testing.T) {
		w := newWorld(t, limited(Retention{KeepAge: time.Minute}))
		p, at := w.pool("p"), w.stack("s")
		for range 2 {
			w.deploy(at, steps(1))
			w.mustClaim(p).runs(0, 1)
		}
		for _, c := range []struct {
			after time.Duration
			code  int
		}{{10 * time.Minute, 200}, {20 * time.Minute, 404}} {
			if err := w.server.prune(t.Context(), time.Now().Add(c.after)); err != nil {
				t.Fatal(err)
			}
			w.want(c.code, w.user, "GET", at+"/version/1", nil, nil)
			w.want(200, w.user, "GET", at+"/version/2", nil, nil)
		}
	})

	t.Run("a job with a large log and 2000 deployments leave a small database", func(t *testing.T) {
		w := newWorld(t, limited(Retention{MaxLogBytes: 1 << 20, KeepDeployments: 20}))
		p, at := w.pool("p"), w.stack("s")
		c, _ := w.started(p, at)
		line := strings.Repeat("x", 1000) + "\n"
		lines := make([]string, 250)
		for i := range lines {
			lines[i] = line
		}
		for offset := 0; offset < 6_000; offset += len(lines) { // 6 MB
			c.mustLog(0, offset, lines...)
		}
		c.status(0, failed)
		afterLargeLog := w.size()
		if afterLargeLog > 6<<20 { // mostly the write-ahead log
			t.Errorf("after a log of 6 MB the database has %d bytes", afterLargeLog)
		}
		now, largest := time.Now(), int64(0)
		for i := range 40 {
			c, id := w.started(p, at)
			c.mustLog(0, 0, lines[:8]...) // 8 kB: 16 MB in all
			c.status(0, failed)
			w.copies(id, 49)
			if i%4 == 3 {
				now = now.Add(time.Hour)
				if err := w.server.prune(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				largest = max(largest, w.size())
			}
		}
		if largest > 10<<20 {
			t.Errorf("the database had %d bytes", largest)
		}
		var count int
		if w.read([]any{&count}, `SELECT count(*) FROM deployments`); count != 20 {
			t.Errorf("%d deployments are left", count)
		}
		t.Logf("%d bytes after the large log, at most %d, at the end %d", afterLargeLog, largest, w.size())
	})
}

func TestFreeSpace(t *testing.T) {
	free, err := freeSpace(t.TempDir())
	if err != nil || free <= 0 {
		t.Errorf("%d bytes: %v", free, err)
	}
	if _, err := freeSpace(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("freeSpace of a directory that does not exist returns no error")
	}
	s := &Server{log: newWorld(t).server.log, freeSpace: freeSpace}
	s.options.Directory, s.options.MinFreeDisk = filepath.Join(t.TempDir(), "none"), 1
	if err := s.checkSpace(); err != nil {
		t.Errorf("checkSpace fails although the space is unknown: %v", err)
	}
}
