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

	// Most calls find no work, so read first.
	waits := false
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		expired, err := t.ExpiredLeases(c.now)
		if err != nil || len(expired) > 0 {
			waits = len(expired) > 0
			return err
		}
		_, waits, err = t.NextActivity(c.caller.subject, kinds, c.now)
		return err
	})
	if err != nil || !waits {
		return reply{}, err
	}

	var lease *cloud.Lease
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		if err := s.endExpiredLeases(t, c.now); err != nil {
			return err
		}
		lease, err = s.giveLease(t, c, kinds)
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
	row, found, err := t.NextActivity(c.caller.subject, kinds, c.now)
	if err != nil || !found {
		return nil, err
	}
	a := &activity{row}
	definition, err := s.activityDefinition(c.Context(), t, a)
	if err != nil {
		return nil, err
	}

	lease := &cloud.Lease{LeaseID: newID(), Kind: a.Kind, LeaseSeconds: s.options.LeaseDuration.Seconds()}
	lease.JobID, lease.RunID, lease.TypeSpecificID = newID(), lease.LeaseID, a.ID
	caller := parseUserAgent(c.UserAgent(), c.RemoteAddr)
	var steps []string
	for _, step := range definition.Steps {
		steps = append(steps, step.Name)
	}
	a.Lease, err = t.AddLease(a.Seq, lease.LeaseID, lease.JobID, strings.Trim(caller.Hostname+" "+caller.PID, " "),
		steps, s.leaseEnd(c.now), c.now)
	if err != nil {
		return nil, err
	}
	a.acquire()
	if err := t.SetActivity(a.Activity, c.now); err != nil {
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
	row, found, err := t.ActivityOf(j.Seq)
	if err != nil {
		return nil, nil, err
	}
	a := &activity{row}
	if found && a.Status == activityCompleted { // 2.
		return a, j, nil
	}
	if !found || !a.held() { // 1.
		return nil, nil, lost
	}
	l, _, err := t.Lease(j.ID)
	if err == nil && !l.Expires.After(c.now) {
		err = lost
	}
	return a, j, err
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
	l, _, err := t.Lease(j.ID)
	if err != nil {
		return nil, false, err
	}
	_, last, err := t.ActivityOf(j.Seq)
	lost := !last || l.Ended == "" && !l.Expires.After(now)
	if lost && j.stop(endedByLease) != nil {
		j.Ended = endedByLease // stop fails for a job that has already ended
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
		if begin && a.Status == activityPending {
			a.Status = activityExecuting
			if err := t.SetActivity(a.Activity, c.now); err != nil {
				return err
			}
		}
		return t.RenewLease(j.Seq, s.leaseEnd(c.now))
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
		l, _, err := t.Lease(c.caller.subject)
		if err != nil {
			return err
		}
		if l.ID == c.PathValue("lease") && l.Result != "" && l.Result == result.Result {
			return store.ErrNoChange
		}
		var j *job
		if a, j, err = heldLease(t, c); err != nil {
			return err
		}
		if err := a.complete(result.Result, result.Reason, j.Status == succeeded, c.now); err != nil {
			return err
		}
		if err := t.SetLeaseResult(j.Seq, result.Result); err != nil {
			return err
		}
		if j.Ended == "" {
			_ = j.stop(endedByAgent) // cannot fail: the job has not ended
			if err := j.save(t, -1, c.now); err != nil {
				return err
			}
		}
		return t.SetActivity(a.Activity, c.now)
	})
	if err == nil && a != nil {
		s.log.Info("lease completed", "component", "leases", "activity", a.ID, "lease", c.caller.subject,
			"result", result.Result, "status", a.Status)
	}
	return reply{body: empty{}}, err
}

// completeBySteps completes an activity when the last step of its job has succeeded. The
// activity then never runs again, even if its agent does not complete the lease. A failed
// step ends only the job: the agent decides whether the activity is retried.
func completeBySteps(t *store.Tx, j *job, now time.Time) error {
	if j.Status != succeeded {
		return nil
	}
	row, found, err := t.ActivityOf(j.Seq)
	a := &activity{row}
	if err != nil || !found || !a.held() {
		return err
	}
	a.Status, a.Reason = activityCompleted, ""
	return t.SetActivity(a.Activity, now)
}

// expireLeases ends leases that have expired, cancels activities that no agent has leased
// within queueLimit, and deletes activities that ended more than activityRetention ago.
func (s *Server) expireLeases(ctx context.Context, now time.Time) error {
	unchanged := true
	err := s.db.Read(ctx, func(t *store.Tx) error {
		expired, err := t.ExpiredLeases(now)
		if err != nil {
			return err
		}
		waiting, err := t.ActivitiesWaitingSince(now.Add(-queueLimit))
		if err != nil {
			return err
		}
		old, err := t.ActivitiesEndedBefore(now.Add(-activityRetention))
		unchanged = len(expired)+len(waiting)+len(old) == 0
		return err
	})
	if err != nil || unchanged {
		return err
	}
	return s.db.Write(ctx, func(t *store.Tx) error {
		if err := s.endExpiredLeases(t, now); err != nil {
			return err
		}
		waiting, err := t.ActivitiesWaitingSince(now.Add(-queueLimit))
		if err != nil {
			return err
		}
		reason := fmt.Sprintf("no agent leased it within %d days", queueLimit/(24*time.Hour))
		if err := cancelEach(t, waiting, reason, endedByQueueLimit, now); err != nil {
			return err
		}
		old, err := t.ActivitiesEndedBefore(now.Add(-activityRetention))
		for _, a := range old {
			if err := t.DeleteActivity(a.Seq); err != nil {
				return err
			}
		}
		return err
	})
}

// endExpiredLeases ends leases that have expired.
func (s *Server) endExpiredLeases(t *store.Tx, now time.Time) error {
	expired, err := t.ExpiredLeases(now)
	if err != nil {
		return err
	}
	for _, seq := range expired {
		j, _, err := asJob(t.JobAt(store.JobKey{Kind: store.LeaseJob, Seq: seq}))
		if err != nil {
			return err
		}
		row, _, err := t.ActivityOf(seq)
		if err != nil {
			return err
		}
		if j.Ended == "" {
			_ = j.stop(endedByLease) // cannot fail: the job has not ended
			if err := j.save(t, -1, now); err != nil {
				return err
			}
		}
		a := &activity{row}
		a.expire(now, s.options.LeaseStop)
		if err := t.SetActivity(a.Activity, now); err != nil {
			return err
		}
		s.log.Warn("lease expired", "component", "leases", "activity", a.ID, "lease", j.ID, "status", a.Status,
			"retries", a.Retries)
	}
	return nil
}

// activityRetention is how long an activity is kept after its end.
const activityRetention = 30 * 24 * time.Hour

// leasedDefinition returns the definition of a leased job, for its runner. It contains
// secrets.
func (s *Server) leasedDefinition(t *store.Tx, c *call, j *job) (cloud.Definition, error) {
	row, found, err := t.ActivityOf(j.Seq)
	if err != nil {
		return cloud.Definition{}, err
	}
	if !found {
		return cloud.Definition{}, conflict("the lease of the job has expired")
	}
	definition, err := s.activityDefinition(c.Context(), t, &activity{row})
	if err != nil {
		return definition, err
	}
	setVariable(&definition, "PULUMI_SERVICE_URL", s.base(c)+"/api")
	return definition, nil
}

// activityDefinition decrypts the definition of an activity.
func (s *Server) activityDefinition(
	ctx context.Context, t *store.Tx, a *activity,
) (definition cloud.Definition, err error) {
	sealed, err := t.ActivityDefinition(a.Seq)
	if err != nil {
		return definition, err
	}
	text, err := s.openActivity(ctx, sealed, a.ID)
	if err != nil {
		return definition, fmt.Errorf("decrypt the definition of activity %s: %w", a.ID, err)
	}
	if err := json.Unmarshal(text, &definition); err != nil {
		return definition, fmt.Errorf("read the definition of activity %s: %w", a.ID, err)
	}
	return definition, nil
}
