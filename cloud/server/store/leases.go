package store

import "time"

// Lease is a lease of an activity, with the status of its job. The job is a [Job] with the same key.
type Lease struct {
	Seq      int64
	ID       string
	Agent    string // hostname and process id
	Status   string // of the job
	Ended    string // why the job has ended; empty before the end
	Result   string // that the agent reported; empty before that
	Acquired time.Time
	Expires  time.Time
	Modified time.Time
}

const leaseColumns = `seq, id, agent, status, ended, result, acquired, expires, modified`

func scanLease(scan func(...any) error) (l Lease, err error) {
	var acquired, expires, modified int64
	err = scan(&l.Seq, &l.ID, &l.Agent, &l.Status, &l.Ended, &l.Result, &acquired, &expires, &modified)
	l.Acquired, l.Expires, l.Modified = FromNanos(acquired), FromNanos(expires), FromNanos(modified)
	return l, err
}

// AddLease adds a lease of an activity and its job, and returns its seq.
func (t *Tx) AddLease(activity int64, id, job, agent string, steps []string, expires, now time.Time) (int64, error) {
	seq, err := t.insert(`INSERT INTO leases (activity, id, job, agent, status, acquired, expires, modified)
		VALUES (?, ?, ?, ?, 'accepted', ?, ?, ?)`,
		activity, id, job, agent, ToNanos(now), ToNanos(expires), ToNanos(now))
	if err != nil {
		return 0, err
	}
	return seq, t.addSteps(JobKey{LeaseJob, seq}, steps)
}

// Lease returns the lease with this id.
func (t *Tx) Lease(id string) (Lease, bool, error) {
	return one(t, scanLease, `SELECT `+leaseColumns+` FROM leases WHERE id = ?`, id)
}

// Leases returns the leases of an activity, the oldest first.
func (t *Tx) Leases(activity int64) ([]Lease, error) {
	return rows(t, scanLease, `SELECT `+leaseColumns+` FROM leases WHERE activity = ? ORDER BY seq`, activity)
}

// ExpiredLeases returns the keys of the leases that are held and have expired.
func (t *Tx) ExpiredLeases(now time.Time) ([]int64, error) {
	return rows(t, scanOne[int64], `SELECT l.seq FROM activities a JOIN leases l ON l.seq = a.lease
		WHERE a.status IN ('Pending', 'Executing') AND l.expires <= ?`, ToNanos(now))
}

// RenewLease changes the time at which a lease expires.
func (t *Tx) RenewLease(seq int64, expires time.Time) error {
	_, err := t.exec(`UPDATE leases SET expires = ? WHERE seq = ?`, ToNanos(expires), seq)
	return err
}

// SetLeaseResult stores the result that an agent reported for a lease.
func (t *Tx) SetLeaseResult(seq int64, result string) error {
	_, err := t.exec(`UPDATE leases SET result = ? WHERE seq = ?`, result, seq)
	return err
}
