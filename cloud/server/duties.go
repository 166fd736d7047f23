package server

import (
	"context"
	"time"
)

// tokenMemory is how long the token of an ended job is known, so that late
// repetitions get their answer.
const tokenMemory = 24 * time.Hour

// expire does at a time what is due then.
func (s *Server) expire(ctx context.Context, now time.Time) error {
	var silent, old []string
	err := s.store.read(ctx, func(t *tx) error {
		_, err := rows(t, func(scan func(...any) error) (none struct{}, err error) {
			var seq, claimed, created int64
			var id, status string
			if err := scan(&seq, &id, &status, &claimed, &created); err != nil {
				return none, err
			}
			switch {
			case status == notStarted && now.Sub(unstamp(created)) > queueLimit:
				old = append(old, id)
			case status != notStarted && now.Sub(later(unstamp(claimed), s.beats.since(seq))) > s.options.HeartbeatLimit:
				silent = append(silent, id)
			}
			return none, nil
		}, `SELECT seq, id, status, claimed, created FROM deployments WHERE status IN ('accepted', 'running')
			UNION ALL SELECT seq, id, status, claimed, created FROM deployments WHERE status = 'not-started'`)
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range silent {
		s.log.Warn("job failed: nothing was heard of it", "component", "duties", "deployment", id, "limit", s.options.HeartbeatLimit)
		if err := s.stop(ctx, id, endedBySilent, now); err != nil {
			return err
		}
	}
	for _, id := range old {
		s.log.Warn("deployment skipped: no agent took it", "component", "duties", "deployment", id, "limit", queueLimit)
		if err := s.stop(ctx, id, endedByAge, now); err != nil {
			return err
		}
	}
	return s.forgetTokens(ctx, now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stop ends a deployment from outside, unless it has ended meanwhile.
func (s *Server) stop(ctx context.Context, id, by string, now time.Time) error {
	return s.store.write(ctx, func(t *tx) error {
		j, found, err := jobBy(t, "id", id)
		if err != nil {
			return err
		}
		if !found || j.jobState.stop(by) != nil {
			return errNothing
		}
		s.beats.forget(j.seq)
		return j.save(t, -1, now)
	})
}

// forgetTokens drops the tokens that have expired and those of jobs that ended
// long ago, and none other.
func (s *Server) forgetTokens(ctx context.Context, now time.Time) error {
	const stale = `(expires > 0 AND expires <= ?) OR (kind = 'job' AND subject IN (SELECT id FROM deployments WHERE ended <> '' AND modified < ?))`
	var found bool
	err := s.store.read(ctx, func(t *tx) (err error) {
		found, err = t.get([]any{new(int)}, `SELECT 1 FROM tokens WHERE `+stale+` LIMIT 1`, stamp(now), stamp(now.Add(-tokenMemory)))
		return err
	})
	if err != nil || !found {
		return err
	}
	return s.store.write(ctx, func(t *tx) error {
		_, err := t.exec(`DELETE FROM tokens WHERE `+stale, stamp(now), stamp(now.Add(-tokenMemory)))
		return err
	})
}
