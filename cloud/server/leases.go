package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/printable"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// activity is an activity in the database.
type activity struct {
	activityState
	seq   int64
	id    string
	lease int64 // seq of the last lease, or 0
}

// loadActivity loads the activity that a condition selects.
func loadActivity(t *store.Tx, condition string, args ...any) (*activity, bool, error) {
	a := new(activity)
	var delay, due int64
	found, err := t.Get([]any{&a.seq, &a.id, &a.lease, &a.status, &a.reason, &a.retries, &delay, &due},
		`SELECT seq, id, lease, status, reason, retries, delay, due FROM activities WHERE `+condition, args...)
	a.delay, a.due = time.Duration(delay), store.FromNanos(due)
	return a, found, err
}

func (a *activity) save(t *store.Tx, now time.Time) error {
	_, err := t.Exec(`UPDATE activities SET status = ?, reason = ?, lease = ?, retries = ?, due = ?, modified = ?
		WHERE seq = ?`, a.status, a.reason, a.lease, a.retries, store.ToNanos(a.due), store.ToNanos(now), a.seq)
	return err
}

// acquireLease leases the oldest activity of the caller's pool that waits for an agent, is
// due, and has a requested kind. A request without kinds, such as that of an agent without
// this extension, gets no lease. If the response is lost, the lease expires.
func (s *Server) acquireLease(c *call) (reply, error) {
	text, err := c.text(maxBody)
	if err != nil {
		return reply{}, err
	}
	var request cloud.AcquireRequest
	if json.Unmarshal(text, &request) != nil || len(request.Kinds) == 0 {
		return reply{}, nil
	}
	if err := s.recordAgent(c); err != nil {
		return reply{}, err
	}
	kinds := slices.DeleteFunc(ActivityKinds(), func(kind string) bool { return !slices.Contains(request.Kinds, kind) })
	if len(kinds) == 0 {
		return reply{}, nil
	}

	var lease *cloud.Lease
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		ended, err := s.endExpiredLeases(t, c.now)
		if err != nil {
			return err
		}
		if lease, err = s.giveLease(t, c, kinds); err == nil && lease == nil && ended == 0 {
			return store.ErrNoChange
		}
		return err
	})
	if err != nil || lease == nil {
		return reply{}, err
	}
	s.log.Info("lease acquired", "component", "leases", "pool", c.caller.subject, "activity", lease.TypeSpecificID,
		"kind", lease.Kind, "lease", lease.LeaseID, "job", lease.JobID)
	return reply{body: lease}, nil
}

// giveLease makes a lease with a job and tokens for the oldest activity of these kinds that
// is due. It returns nil if there is no such activity.
func (s *Server) giveLease(t *store.Tx, c *call, kinds []string) (*cloud.Lease, error) {
	a, found, err := loadActivity(t, `pool = ? AND status IN ('Ready', 'Restarting') AND due <= ?
		AND instr(?, ' ' || kind || ' ') > 0 ORDER BY seq LIMIT 1`,
		c.caller.subject, store.ToNanos(c.now), " "+strings.Join(kinds, " ")+" ")
	if err != nil || !found {
		return nil, err
	}
	definition, kind, err := s.activityDefinition(c.Context(), t, a)
	if err != nil {
		return nil, err
	}

	lease := &cloud.Lease{LeaseID: newID(), Kind: kind, LeaseSeconds: s.options.LeaseDuration.Seconds()}
	lease.JobID, lease.RunID, lease.TypeSpecificID = newID(), lease.LeaseID, a.id
	caller := parseUserAgent(c.UserAgent(), c.RemoteAddr)
	_, err = t.Get([]any{&a.lease}, `INSERT INTO leases (activity, id, job, agent, status, acquired, expires, modified)
		VALUES (?, ?, ?, ?, 'accepted', ?, ?, ?) RETURNING seq`, a.seq, lease.LeaseID, lease.JobID,
		strings.Trim(caller.hostname+" "+caller.pid, " "), store.ToNanos(c.now), store.ToNanos(s.leaseEnd(c.now)), store.ToNanos(c.now))
	if err != nil {
		return nil, err
	}
	for i, step := range definition.Steps {
		_, err := t.Exec(`INSERT INTO lease_steps (lease, number, name, status) VALUES (?, ?, ?, 'not-started')`,
			a.lease, i, step.Name)
		if err != nil {
			return nil, err
		}
	}
	a.acquire()
	if err := a.save(t, c.now); err != nil {
		return nil, err
	}

	// Make the tokens of the job and of the lease.
	forJob, forLease := jobToken.mint(), leaseToken.mint()
	lease.JobToken, lease.LeaseToken = forJob.Reveal(), forLease.Reveal()
	if err := saveToken(t, forJob, principal{jobToken, lease.LeaseID}); err != nil {
		return nil, err
	}
	return lease, saveToken(t, forLease, principal{leaseToken, lease.LeaseID})
}

// leaseEnd returns when a lease that is given or renewed now expires.
func (s *Server) leaseEnd(now time.Time) time.Time { return now.Add(s.options.LeaseDuration) }

// heldLease loads the lease of the caller and its activity.
//
//  1. The lease must be the last one of the activity. It must not have expired: an expired
//     lease is lost even if no other agent has the activity yet.
//  2. If the steps of the job have completed the activity, its last lease stays valid, even
//     after its expiry, so that the agent can still renew and complete it.
func heldLease(t *store.Tx, c *call) (*activity, *job, error) {
	lost := conflict("the lease is lost: it has expired, or the activity has ended or belongs to another agent")
	if c.PathValue("lease") != c.caller.subject {
		return nil, nil, notFound("the token does not belong to lease %q", c.PathValue("lease"))
	}
	j, found, err := asJob(t.JobOf(store.LeaseJob, c.caller.subject))
	if err != nil {
		return nil, nil, err
	}
	if !found {
		return nil, nil, lost
	}
	a, found, err := loadActivity(t, `lease = ?`, j.Seq)
	if err != nil {
		return nil, nil, err
	}
	if found && a.status == activityCompleted { // 2.
		return a, j, nil
	}
	if !found || !a.held() { // 1.
		return nil, nil, lost
	}
	expired, err := leaseExpired(t, j, c.now)
	if err == nil && expired {
		err = lost
	}
	return a, j, err
}

// leaseExpired reports whether the lease of a job has expired.
func leaseExpired(t *store.Tx, j *job, now time.Time) (bool, error) {
	return t.Get([]any{new(int)}, `SELECT 1 FROM leases WHERE seq = ? AND expires <= ?`, j.Seq, store.ToNanos(now))
}

// loadLeased loads the job with this id, if it belongs to a lease. If the lease is lost, the
// job counts as ended by its lease, so that the calls of its runner are refused. The lease is
// lost if the activity has a later lease, or if the lease expired before the job ended. The
// background task that ends expired leases may not have run since.
func loadLeased(t *store.Tx, id string, now time.Time) (*job, bool, error) {
	j, found, err := asJob(t.Job(store.LeaseJob, id))
	if err != nil || !found {
		return j, found, err
	}
	lost, err := t.Get([]any{new(int)}, `SELECT 1 FROM leases l JOIN activities a ON a.seq = l.activity
		WHERE l.seq = ? AND (a.lease <> l.seq OR l.ended = '' AND l.expires <= ?)`, j.Seq, store.ToNanos(now))
	if lost && j.stop(endedByLease) != nil {
		j.ended = endedByLease // stop fails for a job that has already ended
	}
	return j, true, err
}

// beginLease records that the agent begins the work, and renews the lease.
func (s *Server) beginLease(c *call) (reply, error) { return s.extendLease(c, true) }

// renewLease renews the lease.
func (s *Server) renewLease(c *call) (reply, error) { return s.extendLease(c, false) }

func (s *Server) extendLease(c *call, begin bool) (reply, error) {
	if _, err := c.text(maxBody); err != nil {
		return reply{}, err
	}
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		a, j, err := heldLease(t, c)
		if err != nil {
			return err
		}
		if begin && a.status == activityPending {
			a.status = activityExecuting
			if err := a.save(t, c.now); err != nil {
				return err
			}
		}
		_, err = t.Exec(`UPDATE leases SET expires = ? WHERE seq = ?`, store.ToNanos(s.leaseEnd(c.now)), j.Seq)
		return err
	})
	return reply{body: cloud.Renewal{LeaseSeconds: s.options.LeaseDuration.Seconds()}}, err
}

// completeLease ends a lease with a result. A retry of the same result is accepted.
func (s *Server) completeLease(c *call) (reply, error) {
	var result cloud.LeaseResult
	if err := c.decode(maxBody, &result); err != nil {
		return reply{}, err
	}
	result.Reason = printable.Shorten(printable.OneLine(result.Reason), maxReason)

	var a *activity
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		repeated, err := t.Get([]any{new(int)}, `SELECT 1 FROM leases
			WHERE id = ? AND id = ? AND result = ? AND result <> ''`,
			c.PathValue("lease"), c.caller.subject, result.Result)
		if err != nil {
			return err
		}
		if repeated {
			return store.ErrNoChange
		}
		var j *job
		if a, j, err = heldLease(t, c); err != nil {
			return err
		}
		if err := a.complete(result.Result, result.Reason, j.status == succeeded, c.now); err != nil {
			return err
		}
		if _, err := t.Exec(`UPDATE leases SET result = ? WHERE seq = ?`, result.Result, j.Seq); err != nil {
			return err
		}
		if j.ended == "" {
			_ = j.stop(endedByAgent) // cannot fail: the job has not ended
			if err := j.save(t, -1, c.now); err != nil {
				return err
			}
		}
		return a.save(t, c.now)
	})
	if err == nil && a != nil {
		s.log.Info("lease completed", "component", "leases", "activity", a.id, "lease", c.caller.subject,
			"result", result.Result, "status", a.status)
	}
	return reply{body: empty{}}, err
}

// completeBySteps completes an activity when the last step of its job has succeeded. The
// activity then never runs again, even if its agent does not complete the lease. A failed
// step ends only the job: the agent decides whether the activity is retried.
func completeBySteps(t *store.Tx, j *job, now time.Time) error {
	if j.status != succeeded {
		return nil
	}
	_, err := t.Exec(`UPDATE activities SET status = 'Completed', reason = '', modified = ? WHERE lease = ?
		AND status IN ('Pending', 'Executing')`, store.ToNanos(now), j.Seq)
	return err
}

// expireLeases ends leases that have expired, cancels activities that no agent has leased
// within queueLimit, and deletes activities that ended more than activityRetention ago.
func (s *Server) expireLeases(ctx context.Context, now time.Time) error {
	due := false
	err := s.db.Read(ctx, func(t *store.Tx) (err error) {
		due, err = t.Get([]any{new(int)}, `SELECT 1 WHERE EXISTS (SELECT 1 FROM activities a JOIN leases l
				ON l.seq = a.lease WHERE a.status IN ('Pending', 'Executing') AND l.expires <= ?)
			OR EXISTS (SELECT 1 FROM activities WHERE status IN ('Completed', 'Failed', 'Canceled') AND modified < ?)
			OR EXISTS (SELECT 1 FROM activities WHERE `+waitsTooLong+`)`,
			store.ToNanos(now), store.ToNanos(now.Add(-activityRetention)), store.ToNanos(now.Add(-queueLimit)))
		return err
	})
	if err != nil || !due {
		return err
	}
	return s.db.Write(ctx, func(t *store.Tx) error {
		if _, err := s.endExpiredLeases(t, now); err != nil {
			return err
		}
		if err := cancelWaiting(t, now); err != nil {
			return err
		}
		return deleteOldActivities(t, now)
	})
}

// endExpiredLeases ends leases that have expired, and returns their number.
func (s *Server) endExpiredLeases(t *store.Tx, now time.Time) (int, error) {
	all, err := store.Rows(t, func(scan func(...any) error) (lease string, err error) { return lease, scan(&lease) },
		`SELECT l.id FROM activities a JOIN leases l ON l.seq = a.lease
			WHERE a.status IN ('Pending', 'Executing') AND l.expires <= ?`, store.ToNanos(now))
	if err != nil {
		return 0, err
	}
	for _, id := range all {
		j, _, err := asJob(t.JobOf(store.LeaseJob, id))
		if err != nil {
			return 0, err
		}
		a, _, err := loadActivity(t, `lease = ?`, j.Seq)
		if err != nil {
			return 0, err
		}
		if j.ended == "" {
			_ = j.stop(endedByLease) // cannot fail: the job has not ended
			if err := j.save(t, -1, now); err != nil {
				return 0, err
			}
		}
		a.expire(now, s.options.LeaseStop)
		if err := a.save(t, now); err != nil {
			return 0, err
		}
		s.log.Warn("lease expired", "component", "leases", "activity", a.id, "lease", id, "status", a.status,
			"retries", a.retries)
	}
	return len(all), nil
}

// activityRetention is how long an activity is kept after its end.
const activityRetention = 30 * 24 * time.Hour

// deleteOldActivities deletes activities that ended more than activityRetention ago.
func deleteOldActivities(t *store.Tx, now time.Time) error {
	const old = `status IN ('Completed', 'Failed', 'Canceled') AND modified < ?`
	oldest := store.ToNanos(now.Add(-activityRetention))
	_, err := t.Exec(`DELETE FROM tokens WHERE kind IN ('job', 'lease') AND subject IN (SELECT l.id FROM leases l
		JOIN activities a ON a.seq = l.activity WHERE a.status IN ('Completed', 'Failed', 'Canceled')
		AND a.modified < ?)`, oldest)
	if err == nil {
		_, err = t.Exec(`DELETE FROM activities WHERE `+old, oldest)
	}
	return err
}

// leasedDefinition returns the definition of a leased job, for its runner. It contains
// secrets.
func (s *Server) leasedDefinition(t *store.Tx, c *call, j *job) (cloud.Definition, error) {
	a, found, err := loadActivity(t, `lease = ?`, j.Seq)
	if err != nil {
		return cloud.Definition{}, err
	}
	if !found {
		return cloud.Definition{}, conflict("the lease of the job has expired")
	}
	definition, _, err := s.activityDefinition(c.Context(), t, a)
	if err != nil {
		return definition, err
	}
	setVariable(&definition, "PULUMI_SERVICE_URL", s.base(c)+"/api")
	return definition, nil
}

// activityDefinition decrypts the definition of an activity, and returns its kind.
func (s *Server) activityDefinition(ctx context.Context, t *store.Tx, a *activity) (
	definition cloud.Definition, kind string, err error,
) {
	var sealed []byte
	_, err = t.Get([]any{&kind, &sealed}, `SELECT kind, definition FROM activities WHERE seq = ?`, a.seq)
	if err != nil {
		return definition, "", err
	}
	text, err := s.openActivity(ctx, sealed, a.id)
	if err != nil {
		return definition, "", fmt.Errorf("decrypt the definition of activity %s: %w", a.id, err)
	}
	if err := json.Unmarshal(text, &definition); err != nil {
		return definition, "", fmt.Errorf("read the definition of activity %s: %w", a.id, err)
	}
	return definition, kind, nil
}
