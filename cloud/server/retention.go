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

// storeBatch appends a batch to the log of a step. If the log becomes too large, lines in its
// middle are removed, so that its beginning and its end are kept.
func (s *Server) storeBatch(t *store.Tx, j *job, step int, batch cloud.LogBatch, packed []byte, now time.Time) error {
	added := batchOf(batch.Offset, batch.Lines, packed)
	end, stored, limit := batch.Offset+len(batch.Lines), j.Steps[step].Stored, s.options.MaxLogBytes
	var err error
	switch {
	case s.checkSpace() != nil:
		err = appendCut(t, j, step, batch, now)
		added.Count = 0
	case limit > 0 && stored+added.Size() > limit:
		var freed int64
		var dropped int
		freed, dropped, err = cutMiddle(t, j, step, batch, limit, stored+added.Size()-limit, now)
		stored -= freed
		kept := batch.Lines[dropped:]
		added = batchOf(batch.Offset+dropped, kept, packLines(kept))
	}
	if err != nil {
		return err
	}

	if added.Count > 0 {
		if err := t.AddBatch(j.JobKey, step, added); err != nil {
			return err
		}
		stored += added.Size()
	}
	return t.SetLog(j.JobKey, step, end, stored, now)
}

func batchOf(start int, lines []cloud.LogLine, packed []byte) store.Batch {
	return store.Batch{Start: start, Count: len(lines), Bytes: textBytes(lines), Packed: packed}
}

func textBytes(lines []cloud.LogLine) (total int) {
	for _, line := range lines {
		total += len(line.Text)
	}
	return total
}

// saveCut stores a batch in place of lines that are not stored for a reason. It replaces a
// batch with the same start.
func saveCut(t *store.Tx, j *job, step int, b store.Batch, reason string, now time.Time) error {
	if err := t.DropBatch(j.JobKey, step, b.Start); err != nil {
		return err
	}
	b.Cut, b.Packed = reason, packLines([]cloud.LogLine{{Time: now}})
	return t.AddBatch(j.JobKey, step, b)
}

// appendCut records that the lines of a batch are not stored because the disk is nearly full.
func appendCut(t *store.Tx, j *job, step int, batch cloud.LogBatch, now time.Time) error {
	last, found, err := t.LastCut(j.JobKey, step, cutByDisk)
	if err != nil {
		return err
	}
	if !found || last.Start+last.Count != batch.Offset {
		last = store.Batch{Start: batch.Offset}
	}
	last.Count += len(batch.Lines)
	last.Bytes += textBytes(batch.Lines)
	return saveCut(t, j, step, last, cutByDisk, now)
}

// cutMiddle removes batches from the middle of a log until excess bytes are free. The
// beginning of the log, up to half of the limit, is never removed. If the removed batches are
// too small, cutMiddle also drops the first lines of the new batch, and returns the number of
// these lines.
func cutMiddle(t *store.Tx, j *job, step int, batch cloud.LogBatch, limit, excess int64, now time.Time) (
	freed int64, dropped int, err error) {
	// Find the row that stands for the lines that were removed before. A step has at most one.
	// Without it, the middle starts where the first half of the limit ends.
	middle, found, err := t.LastCut(j.JobKey, step, cutByLimit)
	if err == nil && !found {
		if middle.Start, found, err = t.EndOfHead(j.JobKey, step, limit/2); !found {
			middle.Start = batch.Offset
		}
	}
	if err != nil {
		return 0, 0, err
	}

	for end := middle.Start + middle.Count; freed < excess && end < batch.Offset; end = middle.Start + middle.Count {
		row, found, err := t.BatchAt(j.JobKey, step, end)
		if err != nil {
			return 0, 0, err
		}
		if !found || row.Start != end {
			return 0, 0, fmt.Errorf("cut the log of job %s, step %d: %w", j.JobID, step, errPacked)
		}
		if err := t.DropBatch(j.JobKey, step, end); err != nil {
			return 0, 0, err
		}
		middle.Count += row.Count
		middle.Bytes += row.Bytes
		freed += row.Size()
	}

	for freed < excess && dropped < len(batch.Lines) {
		line := batch.Lines[dropped : dropped+1]
		excess -= int64(len(packLines(line)))
		middle.Count++
		middle.Bytes += textBytes(line)
		dropped++
	}
	return freed, dropped, saveCut(t, j, step, middle, cutByLimit, now)
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
	const some = 50
	err = s.db.Read(ctx, func(t *store.Tx) error {
		if s.options.KeepAge > 0 {
			old, err = t.EndedBefore(now.Add(-max(s.options.KeepAge, pruneDelay)), some)
		}
		if err == nil && len(old) == 0 && s.options.KeepDeployments > 0 {
			old, err = t.EndedBeyond(s.options.KeepDeployments, now.Add(-pruneDelay), some)
		}
		return err
	})
	return old, err
}

// deleteDeployment deletes an ended deployment with its log, steps and tokens.
func (s *Server) deleteDeployment(ctx context.Context, seq int64) error {
	for more := true; more; {
		err := s.db.Write(ctx, func(t *store.Tx) (err error) {
			more, err = t.DeleteDeployment(seq, pruneRows)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
