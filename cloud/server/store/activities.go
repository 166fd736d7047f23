package store

import (
	"strings"
	"time"
)

// Activity is leased work: a scan or a policy evaluation of a pool.
type Activity struct {
	Seq       int64
	ID        string
	Kind      string
	Name      string
	Status    string
	Reason    string        // of the status; may be empty
	Lease     int64         // seq of the last lease, or 0
	Retries   int           // that are left
	Delay     time.Duration // after an agent has given the activity back, before it is leased again
	Due       time.Time     // the activity is not leased before this time; may be zero
	Requester string
	Created   time.Time
	Modified  time.Time
}

// activityColumns are the columns of an [Activity], in the order of scanActivity.
const activityColumns = `a.seq, a.id, a.kind, a.name, a.status, a.reason, a.lease, a.retries, a.delay, a.due,
	a.requester, a.created, a.modified`

func scanActivity(scan func(...any) error) (a Activity, err error) {
	var delay, due, created, modified int64
	err = scan(&a.Seq, &a.ID, &a.Kind, &a.Name, &a.Status, &a.Reason, &a.Lease, &a.Retries, &delay, &due,
		&a.Requester, &created, &modified)
	a.Delay, a.Due = time.Duration(delay), FromNanos(due)
	a.Created, a.Modified = FromNanos(created), FromNanos(modified)
	return a, err
}

// AddActivity queues an activity of a pool. Its lease is ignored. The definition is encrypted.
func (t *Tx) AddActivity(organization, pool string, a Activity, definition []byte, now time.Time) error {
	_, err := t.exec(`INSERT INTO activities (id, organization, pool, kind, name, status, retries, delay, due,
			requester, created, modified, definition) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		a.ID, organization, pool, a.Kind, a.Name, a.Status, a.Retries, int64(a.Delay), ToNanos(a.Due),
		a.Requester, ToNanos(now), ToNanos(now), definition)
	return err
}

// SetActivity changes the status of an activity, its reason, lease, retries and due time.
func (t *Tx) SetActivity(a Activity, now time.Time) error {
	_, err := t.exec(`UPDATE activities SET status = ?, reason = ?, lease = ?, retries = ?, due = ?, modified = ?
		WHERE seq = ?`, a.Status, a.Reason, a.Lease, a.Retries, ToNanos(a.Due), ToNanos(now), a.Seq)
	return err
}

// Activity returns an activity of a pool.
func (t *Tx) Activity(pool, id string) (Activity, bool, error) {
	return one(t, scanActivity, `SELECT `+activityColumns+` FROM activities a WHERE a.id = ? AND a.pool = ?`,
		id, pool)
}

// ActivityOf returns the activity whose last lease is this one.
func (t *Tx) ActivityOf(lease int64) (Activity, bool, error) {
	return one(t, scanActivity, `SELECT `+activityColumns+` FROM leases l
		JOIN activities a ON a.seq = l.activity AND a.lease = l.seq WHERE l.seq = ?`, lease)
}

// NextActivity returns the oldest activity of a pool that waits for an agent, is due, and has one of the kinds, which
// contain no spaces.
func (t *Tx) NextActivity(pool string, kinds []string, now time.Time) (Activity, bool, error) {
	return one(t, scanActivity, `SELECT `+activityColumns+` FROM activities a
		WHERE a.pool = ? AND a.status IN ('Ready', 'Restarting') AND a.due <= ?
			AND instr(?, concat(' ', a.kind, ' ')) > 0 ORDER BY a.seq LIMIT 1`,
		pool, ToNanos(now), " "+strings.Join(kinds, " ")+" ")
}

// Activities returns the last activities of a pool, the newest first.
func (t *Tx) Activities(pool string, limit int) ([]Activity, error) {
	return rows(t, scanActivity, `SELECT `+activityColumns+` FROM activities a WHERE a.pool = ?
		ORDER BY a.seq DESC LIMIT ?`, pool, limit)
}

// UnfinishedActivities returns the activities of a pool that have not ended.
func (t *Tx) UnfinishedActivities(pool string) ([]Activity, error) {
	return rows(t, scanActivity, `SELECT `+activityColumns+` FROM activities a WHERE a.pool = ?
		AND a.status IN ('Ready', 'Pending', 'Executing', 'Restarting')`, pool)
}

// ActivitiesWaitingSince returns the activities that have waited for an agent since a time.
func (t *Tx) ActivitiesWaitingSince(since time.Time) ([]Activity, error) {
	return rows(t, scanActivity, `SELECT `+activityColumns+` FROM activities a
		WHERE a.status IN ('Ready', 'Restarting') AND a.modified < ?`, ToNanos(since))
}

// ActivitiesEndedBefore returns the activities that ended before a time.
func (t *Tx) ActivitiesEndedBefore(end time.Time) ([]Activity, error) {
	return rows(t, scanActivity, `SELECT `+activityColumns+` FROM activities a
		WHERE a.status IN ('Completed', 'Failed', 'Canceled') AND a.modified < ?`, ToNanos(end))
}

// DeleteActivity deletes an activity with its leases, their logs and their tokens.
func (t *Tx) DeleteActivity(seq int64) error {
	_, err := t.exec(`DELETE FROM tokens WHERE kind IN ('job', 'lease')
		AND subject IN (SELECT id FROM leases WHERE activity = ?)`, seq)
	if err == nil {
		_, err = t.exec(`DELETE FROM activities WHERE seq = ?`, seq)
	}
	return err
}

// ActivityDefinition returns the encrypted definition of an activity.
func (t *Tx) ActivityDefinition(seq int64) (sealed []byte, err error) {
	_, err = t.get([]any{&sealed}, `SELECT definition FROM activities WHERE seq = ?`, seq)
	return sealed, err
}
