package server

import (
	"context"
	"errors"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// tokenRetention is how long the token of an ended job stays valid, so that late
// retries are answered.
const tokenRetention = 24 * time.Hour

// expire returns lost claims to the queue, fails jobs without a heartbeat, skips deployments
// that no agent has claimed, ends expired leases and updates, and deletes old activities (scans and
// policy evaluations) and expired tokens. The time before since does not count as silence of a job.
func (s *Server) expire(ctx context.Context, now, since time.Time) error {
	// Find claimed jobs without a recent heartbeat, and deployments that waited too long.
	var lost, stalled, unclaimed []string
	err := s.db.Read(ctx, func(t *store.Tx) error {
		all, err := t.UnfinishedDeployments()
		for _, d := range all {
			silence := now.Sub(later(d.Heartbeat, since))
			switch {
			case d.Status == notStarted && now.Sub(d.Created) > queueLimit:
				unclaimed = append(unclaimed, d.ID)
			case d.Status == notStarted:
			case silence > s.options.HeartbeatLimit:
				stalled = append(stalled, d.ID)
			case d.Status == accepted && silence > requeueAfter:
				lost = append(lost, d.ID)
			}
		}
		return err
	})
	if err != nil {
		return err
	}

	for _, id := range lost {
		if err := s.requeue(ctx, id, now); err != nil {
			return err
		}
	}
	for _, id := range stalled {
		s.log.Warn("job failed: no heartbeat", "component", "expiry",
			"deployment", id, "limit", s.options.HeartbeatLimit)
		if err := s.stopDeployment(ctx, id, endedByNoHeartbeat, now); err != nil {
			return err
		}
	}
	for _, id := range unclaimed {
		s.log.Warn("deployment skipped: no agent claimed it", "component", "expiry",
			"deployment", id, "limit", queueLimit)
		if err := s.stopDeployment(ctx, id, endedByQueueLimit, now); err != nil {
			return err
		}
	}
	return errors.Join(s.expireLeases(ctx, now), s.expireUpdates(ctx, now), s.deleteRemovedStacks(ctx, now),
		s.db.Write(ctx, func(t *store.Tx) error { return t.DeleteExpiredTokens(now) }))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stopDeployment ends a deployment, unless it has ended meanwhile.
func (s *Server) stopDeployment(ctx context.Context, id, by string, now time.Time) error {
	return s.db.Write(ctx, func(t *store.Tx) error {
		j, found, err := asJob(t.JobOf(store.DeploymentJob, id))
		if err != nil {
			return err
		}
		if !found {
			return store.ErrNoChange
		}
		heartbeat := now.Sub(j.Heartbeat) <= s.options.HeartbeatLimit // since expire read it
		if by == endedByNoHeartbeat && heartbeat || j.stop(by) != nil {
			return store.ErrNoChange
		}
		return j.save(t, -1, now)
	})
}
