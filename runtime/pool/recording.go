package pool

import (
	"context"
	"fmt"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// record adds the job to the journal. A job whose record cannot be stored runs without
// one: a claimed job that is not run is lost for certain.
func (r *jobRun) record() {
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, journalLimit)
	defer cancel()
	err := r.pool.parts.Journal.Add(ctx, runtime.NewRecord(r.job, r.since))
	r.recorded = err == nil
	if err != nil {
		r.log().Warn("cannot record the job in the journal; if the agent is killed, "+runtime.DeclaredFailed,
			"error", err)
		r.pool.parts.Metrics.JournalFailed(r.job.PoolName)
		// The record may be stored in spite of the error. If it cannot be removed, it counts as
		// stored: recordHandoff sets its stage or removes it.
		r.recorded = r.pool.parts.Journal.Remove(ctx, r.job.ID) != nil
	}
	killpoint.Hit(killpoint.Journalled)
}

// recordRestart counts a start of a recovered job in its record, before anything else is done for the
// start. Without the count, a job that ends its agent would be started again and again.
func (r *jobRun) recordRestart(ctx context.Context) error {
	record := runtime.NewRecord(r.job, r.since)
	record.Restarts = r.recovery.record.Restarts + 1
	if err := r.replaceRecord(ctx, record); err != nil {
		r.pool.parts.Metrics.JournalFailed(r.job.PoolName)
		return fmt.Errorf("record its next start: %w", err)
	}
	return nil
}

// recordCreated ends the count of starts of a recovered job, because one has created an instance, and records that
// nothing of the job has run. It is called before the instance is removed: afterwards nothing would show how far the
// start came, if the agent ends again.
func (r *jobRun) recordCreated(ctx context.Context) {
	r.recovery.record.Restarts = 0
	record := runtime.NewRecord(r.job, r.since)
	record.Instance = r.recovery.record.Instance
	if err := r.replaceRecord(ctx, record); err != nil {
		r.log().Debug("cannot record that a start has created an instance", "error", err)
	}
}

// replaceRecord replaces the record of a recovered job. The progress stays.
func (r *jobRun) replaceRecord(ctx context.Context, record runtime.Record) error {
	ctx, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	record.Progress = r.recovery.record.Progress
	err := r.pool.parts.Journal.Add(ctx, record)
	if err == nil {
		r.recovery.record, r.recorded = record, true
	}
	return err
}

// recordHandoff records that the job may run from now on, immediately before the handoff
// is sent. If that fails, it removes the record, because a record with the old stage would
// make a restarted agent run the job again. If the removal fails too, recordHandoff returns
// an error, and the job must not start.
func (r *jobRun) recordHandoff(ctx context.Context) error {
	if !r.recorded {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	err := r.pool.parts.Journal.SetStage(limited, r.job.ID, runtime.RecordHandedOff)
	if err == nil {
		killpoint.Hit(killpoint.HandoffRecorded)
		return nil
	}
	if removal := r.pool.parts.Journal.Remove(limited, r.job.ID); removal != nil {
		return fmt.Errorf("record that the job starts: %w; remove its record: %w", err, removal)
	}
	r.recorded = false
	r.pool.parts.Metrics.JournalFailed(r.job.PoolName)
	r.log().Warn("cannot record that the job starts, so its record is removed; if the agent is killed, "+
		runtime.DeclaredFailed, "error", err)
	return nil
}

// recordNotRun records that nothing of the job has run, and that it can be started again. If
// that fails, the job counts as run.
func (r *jobRun) recordNotRun(ctx context.Context) {
	if !r.recorded {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, journalLimit)
	defer cancel()
	if err := r.pool.parts.Journal.SetStage(ctx, r.job.ID, runtime.RecordClaimed); err != nil {
		r.log().Debug("cannot record that the job has not run", "error", err)
	}
}

// recordReport records that the service needs no further report of the job, if the job is
// settled.
func (r *jobRun) recordReport() {
	if !r.recorded || !r.settled {
		return
	}
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, journalLimit)
	defer cancel()
	if err := r.pool.parts.Journal.SetStage(ctx, r.job.ID, runtime.RecordReported); err != nil {
		r.log().Debug("cannot record the report of the job", "error", err) // removal follows
	}
}

// removeRecord removes the record of a job whose instance is gone, and reports whether the
// job has no record any more. A job whose outcome could not be reported keeps its record,
// because a restarted agent may be able to report it.
func (r *jobRun) removeRecord() bool {
	if !r.recorded {
		return true
	}
	if !r.settled {
		return false
	}
	ctx, cancel := context.WithTimeout(r.pool.finalCtx, journalLimit)
	defer cancel()
	if err := r.pool.parts.Journal.Remove(ctx, r.job.ID); err != nil {
		r.log().Warn("cannot remove the record of the job", "error", err)
		return false
	}
	return true
}
