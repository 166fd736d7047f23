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

	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := jobFromPath(t, c)
		if err != nil {
			return err
		}
		changed, err := j.report(number, body.Status)
		if err != nil {
			return err
		}
		if !changed {
			return store.ErrNoChange
		}
		if err := j.save(t, number, c.now); err != nil {
			return err
		}
		return heartbeatOf(t, c, j)
	})
	return reply{body: empty{}}, err
}

// heartbeatOf stores the call of a runner as a heartbeat of its job. A leased job needs none, because its agent renews
// the lease.
func heartbeatOf(t *store.Tx, c *call, j *job) error {
	if j.leased() {
		return nil
	}
	return t.RecordHeartbeat(j.Seq, c.now)
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
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := jobFromPath(t, c)
		if err != nil {
			return err
		}
		place, err := j.placeBatch(number, batch.Offset)
		if err != nil || len(batch.Lines) == 0 {
			return err
		}
		if place == compareBatch {
			return sameBatch(t, j, number, batch, packed)
		}
		if err := s.storeBatch(t, j, number, batch, packed, c.now); err != nil {
			return err
		}
		return heartbeatOf(t, c, j)
	})
	return reply{body: empty{}}, err
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
