package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/printable"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Retention limits what the service stores. A field with the value 0 is no limit.
type Retention struct {
	MaxLogBytes     int64         // of the log of one step: its beginning and its end are kept
	KeepDeployments int           // of one stack: older ones are deleted
	KeepAge         time.Duration // from the end of a deployment to its deletion; the last one of a stack is kept
	MinFreeDisk     int64         // bytes; if fewer are free, logs are not stored and new work is refused
}

// describe returns the limits of deployments, as the end of a sentence that begins with
// "it was deleted".
func (r Retention) describe() string {
	var limits []string
	if r.KeepDeployments > 0 {
		limits = append(limits, fmt.Sprintf("the last %d of a stack (--keep-deployments)", r.KeepDeployments))
	}
	if r.KeepAge > 0 {
		limits = append(limits, fmt.Sprintf("those of the last %s (--keep-age)", r.KeepAge))
	}
	if len(limits) == 0 {
		return ""
	}
	return ", because the service keeps " + strings.Join(limits, ", and of these ")
}

// Reasons why lines are not stored.
const (
	cutByLimit = "limit"
	cutByDisk  = "disk"
)

// describeCut returns the line that a log has in place of lines that are not stored. Bytes is
// the size of these lines. It is 0 if an earlier page of the log contained some of the lines,
// because they were removed after that page was read.
func (s *Server) describeCut(cut string, bytes, lines int) string {
	reason := "the limit of a step's log (--max-log-bytes)"
	switch {
	case cut == cutByDisk:
		reason = "the disk of the service was nearly full (--min-free-disk)"
	case s.options.MaxLogBytes > 0:
		reason = fmt.Sprintf("the limit of a step's log is %d bytes (--max-log-bytes)", s.options.MaxLogBytes)
	}
	missing, first := printable.Plural(lines, "line"), lines
	if bytes > 0 {
		missing, first = printable.Plural(bytes, "byte")+" in "+missing, bytes
	}
	verb := "are"
	if first == 1 {
		verb = "is"
	}
	return fmt.Sprintf("[%s %s not stored: %s]\n", missing, verb, reason)
}

// rowOverhead is the approximate size of a batch in the database without its lines.
const rowOverhead = 64

// storeBatch appends a batch to the log of a step. If the log becomes too large, lines in its
// middle are removed, so that its beginning and its end are kept.
func (s *Server) storeBatch(t *store.Tx, j *job, step int, batch cloud.LogBatch, packed []byte, now time.Time) error {
	start, end, size := batch.Offset, batch.Offset+len(batch.Lines), int64(len(packed)+rowOverhead)
	var stored int64
	_, err := t.Get([]any{&stored}, j.sql(`SELECT stored FROM {steps} WHERE {owner} = ? AND number = ?`), j.seq, step)
	if err != nil {
		return err
	}

	limit := s.options.MaxLogBytes
	switch {
	case s.checkSpace() != nil:
		err = appendCut(t, j, step, batch, now)
		batch.Lines = nil
	case limit > 0 && stored+size > limit:
		var freed int64
		var dropped int
		freed, dropped, err = cutMiddle(t, j, step, batch, limit, stored+size-limit, now)
		stored -= freed
		start, batch.Lines = start+dropped, batch.Lines[dropped:]
		packed = packLines(batch.Lines)
	}
	if err != nil {
		return err
	}

	if len(batch.Lines) > 0 {
		_, err = t.Exec(j.sql(`INSERT INTO {batches} ({owner}, step, start, count, bytes, lines)
			VALUES (?, ?, ?, ?, ?, ?)`), j.seq, step, start, len(batch.Lines), textBytes(batch.Lines), packed)
		if err != nil {
			return err
		}
		stored += int64(len(packed) + rowOverhead)
	}
	_, err = t.Exec(j.sql(`UPDATE {steps} SET lines = ?, stored = ?, modified = ? WHERE {owner} = ? AND number = ?`),
		end, stored, store.ToNanos(now), j.seq, step)
	return err
}

func textBytes(lines []cloud.LogLine) (total int) {
	for _, line := range lines {
		total += len(line.Text)
	}
	return total
}

// cut is a row in place of lines that are not stored.
type cut struct{ start, count, bytes int }

// save writes the row. It replaces a row with the same start.
func (c cut) save(t *store.Tx, j *job, step int, reason string, now time.Time) error {
	_, err := t.Exec(j.sql(`INSERT OR REPLACE INTO {batches} ({owner}, step, start, count, bytes, cut, lines)
		VALUES (?, ?, ?, ?, ?, ?, ?)`), j.seq, step, c.start, c.count, c.bytes, reason,
		packLines([]cloud.LogLine{{Time: now}}))
	return err
}

// appendCut records that the lines of a batch are not stored because the disk is nearly full.
func appendCut(t *store.Tx, j *job, step int, batch cloud.LogBatch, now time.Time) error {
	last := cut{start: batch.Offset}
	var before cut
	found, err := t.Get([]any{&before.start, &before.count, &before.bytes}, j.sql(`SELECT start, count, bytes
		FROM {batches} WHERE {owner} = ? AND step = ? AND cut = 'disk' ORDER BY start DESC LIMIT 1`), j.seq, step)
	if err != nil {
		return err
	}
	if found && before.start+before.count == batch.Offset {
		last = before
	}
	last.count += len(batch.Lines)
	last.bytes += textBytes(batch.Lines)
	return last.save(t, j, step, cutByDisk, now)
}

// cutMiddle removes batches from the middle of a log until excess bytes are free. The
// beginning of the log, up to half of the limit, is never removed. If the removed batches are
// too small, cutMiddle also drops the first lines of the new batch, and returns the number of
// these lines.
func cutMiddle(t *store.Tx, j *job, step int, batch cloud.LogBatch, limit, excess int64, now time.Time) (
	freed int64, dropped int, err error) {
	// Find the row that stands for the lines that were removed before. Without such a row, the
	// middle starts where the first half of the limit ends.
	var middle cut
	found, err := t.Get([]any{&middle.start, &middle.count, &middle.bytes}, j.sql(`SELECT start, count, bytes
		FROM {batches} WHERE {owner} = ? AND step = ? AND cut = 'limit' ORDER BY start LIMIT 1`), j.seq, step)
	if err == nil && !found {
		middle.start, err = endOfHead(t, j, step, limit/2, batch.Offset)
	}
	if err != nil {
		return 0, 0, err
	}

	for end := middle.start + middle.count; freed < excess && end < batch.Offset; end = middle.start + middle.count {
		var row cut
		var size int64
		found, err := t.Get([]any{&row.count, &row.bytes, &size}, j.sql(`DELETE FROM {batches}
			WHERE {owner} = ? AND step = ? AND start = ?
			RETURNING count, bytes, CASE cut WHEN '' THEN length(lines) + 64 ELSE 0 END`), j.seq, step, end)
		if err != nil {
			return 0, 0, err
		}
		if !found {
			return 0, 0, fmt.Errorf("cut the log of job %s, step %d: %w", j.job, step, errPacked)
		}
		middle.count += row.count
		middle.bytes += row.bytes
		freed += size
	}

	for freed < excess && dropped < len(batch.Lines) {
		line := batch.Lines[dropped : dropped+1]
		excess -= int64(len(packLines(line)))
		middle.count++
		middle.bytes += textBytes(line)
		dropped++
	}
	return freed, dropped, middle.save(t, j, step, cutByLimit, now)
}

// endOfHead returns the offset of the first batch that does not fit into size bytes
// together with those before it, or last if all stored batches fit.
func endOfHead(t *store.Tx, j *job, step int, size int64, last int) (int, error) {
	var at *int
	_, err := t.Get([]any{&at}, j.sql(`SELECT min(start) FROM (
		SELECT start, sum(CASE cut WHEN '' THEN length(lines) + 64 ELSE 0 END) OVER (ORDER BY start) AS total
			FROM {batches} WHERE {owner} = ? AND step = ?) WHERE total > ?`), j.seq, step, size)
	if err != nil || at == nil {
		return last, err
	}
	return *at, nil
}

// freeSpace returns how many bytes of the file system of a directory are available.
func freeSpace(directory string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		return 0, fmt.Errorf("measure the free space of the disk: %w", err)
	}
	return int64(uint64(stat.Bavail) * uint64(stat.Bsize)), nil
}

// checkSpace returns a problem if the disk has less space than MinFreeDisk, and nil if the
// space cannot be measured.
func (s *Server) checkSpace() error {
	least := s.options.MinFreeDisk
	if least <= 0 {
		return nil
	}
	free, err := s.freeSpace(s.options.Directory)
	if err != nil {
		s.log.Debug("cannot read the free space of the disk", "component", "retention", "error", err)
		return nil
	}
	full := free < least
	if s.diskFull.Swap(full) != full {
		if full {
			s.log.Warn("disk nearly full: logs are not stored, and new work is refused",
				"component", "retention", "free_bytes", free, "min_free_bytes", least)
		} else {
			s.log.Info("disk has enough free space again", "component", "retention", "free_bytes", free)
		}
	}
	if full {
		return refuse(http.StatusInsufficientStorage, "the disk of the service has %d bytes free, fewer than the %d "+
			"of --min-free-disk: free some space; running jobs continue", free, least)
	}
	return nil
}

const (
	pruneInterval = time.Minute
	pruneDelay    = 15 * time.Minute // an ended deployment is kept for this time: late retries are answered
	pruneRows     = 16               // batches that one transaction deletes, of at most a megabyte each
)

// prune deletes deployments beyond the limits, and returns the freed space to the file
// system. Each transaction is small, so that calls do not wait for it.
func (s *Server) prune(ctx context.Context, now time.Time) error {
	total := 0
	for {
		old, err := s.oldDeployments(ctx, now)
		if err != nil {
			return err
		}
		if len(old) == 0 {
			break
		}
		for _, seq := range old {
			if err := s.deleteDeployment(ctx, seq); err != nil {
				return err
			}
		}
		total += len(old)
	}
	if total > 0 {
		s.log.Info("old deployments deleted", "component", "retention", "deployments", total)
	}
	return s.db.Shrink(ctx)
}

// oldDeployments returns some deployments beyond the limits. It never returns one that is
// queued or running, nor the last one of a stack.
func (s *Server) oldDeployments(ctx context.Context, now time.Time) (old []int64, err error) {
	scanSeq := func(scan func(...any) error) (seq int64, err error) { return seq, scan(&seq) }
	settled := store.ToNanos(now.Add(-pruneDelay))
	err = s.db.Read(ctx, func(t *store.Tx) error {
		if age := s.options.KeepAge; age > 0 {
			old, err = store.Rows(t, scanSeq, `SELECT d.seq FROM deployments d JOIN stacks s ON s.id = d.stack
				WHERE d.ended <> '' AND d.modified < ? AND d.version < s.deployments ORDER BY d.modified LIMIT 50`,
				min(settled, store.ToNanos(now.Add(-age))))
		}
		if err != nil || len(old) > 0 || s.options.KeepDeployments <= 0 {
			return err
		}
		old, err = store.Rows(t, scanSeq, `WITH oldest AS (SELECT s.id, (SELECT k.version FROM deployments k
				WHERE k.stack = s.id ORDER BY k.version DESC LIMIT 1 OFFSET ?) AS version FROM stacks s)
			SELECT d.seq FROM oldest JOIN deployments d ON d.stack = oldest.id AND d.version <= oldest.version
			WHERE d.ended <> '' AND d.modified < ? LIMIT 50`, s.options.KeepDeployments, settled)
		return err
	})
	return old, err
}

// deleteDeployment deletes an ended deployment with its log, steps and tokens.
func (s *Server) deleteDeployment(ctx context.Context, seq int64) error {
	for {
		var deleted int64
		err := s.db.Write(ctx, func(t *store.Tx) (err error) {
			deleted, err = t.Exec(`DELETE FROM batches
				WHERE id IN (SELECT id FROM batches WHERE deployment = ? LIMIT ?)`, seq, pruneRows)
			if err != nil || deleted == pruneRows {
				return err
			}
			_, err = t.Exec(`DELETE FROM tokens WHERE kind IN ('job', 'stack')
				AND subject = (SELECT id FROM deployments WHERE seq = ?)`, seq)
			if err != nil {
				return err
			}
			_, err = t.Exec(`DELETE FROM deployments WHERE seq = ? AND ended <> ''`, seq)
			return err
		})
		if err != nil || deleted < pruneRows {
			return err
		}
	}
}
