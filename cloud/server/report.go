package server

import (
	"bytes"

	"github.com/cmwa-project/cmwa/cloud"
)

// step reads the index of a step in a path. What is no number is no step.
func step(c *call) (int, error) {
	n, err := number("the step", c.PathValue("step"), 0, 1<<20)
	if err != nil {
		return 0, notFound("there is no step %q", c.PathValue("step"))
	}
	return int(n), nil
}

// reportStatus takes a step's status from the runner.
func (s *Server) reportStatus(c *call) (reply, error) {
	number, err := step(c)
	if err != nil {
		return reply{}, err
	}
	var body cloud.StepStatus
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	var j *job
	err = s.store.write(c.Context(), func(t *tx) error {
		if j, err = jobOf(t, c); err != nil {
			return err
		}
		changed, err := j.report(number, body.Status)
		if err != nil {
			return err
		}
		if !changed {
			return errNothing
		}
		return j.save(t, number, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.touched(c, j)
	return reply{body: empty{}}, nil
}

// touched takes note that something of a job was heard.
func (s *Server) touched(c *call, j *job) {
	if j.ended == "" {
		s.beats.heard(j.seq, c.now)
		return
	}
	s.beats.forget(j.seq)
}

// reportLogs takes a batch of lines from the runner.
func (s *Server) reportLogs(c *call) (reply, error) {
	number, err := step(c)
	if err != nil {
		return reply{}, err
	}
	batch, err := readBatch(c)
	if err != nil {
		return reply{}, err
	}
	packed := packLines(batch.Lines)
	var j *job
	err = s.store.write(c.Context(), func(t *tx) error {
		if j, err = jobOf(t, c); err != nil {
			return err
		}
		place, err := j.place(number, batch.Offset)
		if err != nil || len(batch.Lines) == 0 {
			return err
		}
		if place == compareBatch {
			return sameBatch(t, j, number, batch.Offset, packed)
		}
		_, err = t.exec(`INSERT INTO batches (deployment, step, start, count, lines) VALUES (?, ?, ?, ?, ?)`,
			j.seq, number, batch.Offset, len(batch.Lines), packed)
		if err != nil {
			return err
		}
		_, err = t.exec(`UPDATE steps SET lines = ?, modified = ? WHERE deployment = ? AND number = ?`,
			batch.Offset+len(batch.Lines), stamp(c.now), j.seq, number)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	s.touched(c, j)
	return reply{body: empty{}}, nil
}

// sameBatch accepts the repetition of a stored batch and refuses all else at
// its place.
func sameBatch(t *tx, j *job, step, offset int, packed []byte) error {
	var stored []byte
	found, err := t.get([]any{&stored}, `SELECT lines FROM batches WHERE deployment = ? AND step = ? AND start = ?`, j.seq, step, offset)
	switch {
	case err != nil:
		return err
	case found && bytes.Equal(stored, packed):
		return errNothing
	default:
		return badRequest("other lines are stored at offset %d: the next offset of step %d is %d", offset, step, j.steps[step].lines)
	}
}
