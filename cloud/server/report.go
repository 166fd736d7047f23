package server

import (
	"bytes"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// stepIndex returns the step number in the path of the request.
func stepIndex(c *call) (int, error) {
	n, err := parseNumber("the step", c.PathValue("step"), 0, 1<<20)
	if err != nil {
		return 0, notFound("there is no step %q", c.PathValue("step"))
	}
	return int(n), nil
}

// reportStatus handles the report of a runner about the status of a step.
func (s *Server) reportStatus(c *call) (reply, error) {
	number, err := stepIndex(c)
	if err != nil {
		return reply{}, err
	}
	var body cloud.StepStatus
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}

	var j *job
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		if j, err = jobFromPath(t, c); err != nil {
			return err
		}
		changed, err := j.report(number, body.Status)
		if err != nil {
			return err
		}
		if !changed {
			return store.ErrNoChange
		}
		return j.save(t, number, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.recordHeartbeat(c, j)
	return reply{body: empty{}}, nil
}

// recordHeartbeat records the call of a runner as a heartbeat. If the job has ended, it
// deletes the record of the job's heartbeats. A leased job needs no heartbeats, because its
// agent renews the lease.
func (s *Server) recordHeartbeat(c *call, j *job) {
	if j.leased() {
		return
	}
	if j.Ended == "" {
		s.heartbeats.record(j.Seq, c.now)
		return
	}
	s.heartbeats.forget(j.Seq)
}

// reportLogs stores a batch of log lines that a runner sends.
func (s *Server) reportLogs(c *call) (reply, error) {
	number, err := stepIndex(c)
	if err != nil {
		return reply{}, err
	}
	batch, err := readBatch(c)
	if err != nil {
		return reply{}, err
	}

	packed := packLines(batch.Lines)
	var j *job
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		if j, err = jobFromPath(t, c); err != nil {
			return err
		}
		place, err := j.placeBatch(number, batch.Offset)
		if err != nil || len(batch.Lines) == 0 {
			return err
		}
		if place == compareBatch {
			return sameBatch(t, j, number, batch, packed)
		}
		return s.storeBatch(t, j, number, batch, packed, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.recordHeartbeat(c, j)
	return reply{body: empty{}}, nil
}

// sameBatch accepts a retry of a stored batch. It also accepts a retry of lines that were not
// stored because of a limit. It refuses all other lines at an offset before the end of the
// log.
func sameBatch(t *store.Tx, j *job, step int, batch cloud.LogBatch, packed []byte) error {
	b, found, err := t.BatchAt(j.JobKey, step, batch.Offset)
	switch {
	case err != nil:
		return err
	case found && b.Start == batch.Offset && bytes.Equal(b.Packed, packed):
		return store.ErrNoChange
	case found && b.Cut != "" && batch.Offset+len(batch.Lines) <= j.Steps[step].Lines:
		return store.ErrNoChange
	default:
		lines := j.Steps[step].Lines
		return wrongOffset(lines, "offset %d is before the end of the log of step %d, and these lines are not a "+
			"retry of a stored batch: continue at offset %d", batch.Offset, step, lines)
	}
}
