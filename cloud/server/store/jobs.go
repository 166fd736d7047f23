package store

import (
	"strings"
	"time"
)

// JobKind is the kind of a job: that of a deployment, or that of a lease. The tables of both kinds have the same
// columns.
type JobKind int

// The kinds of jobs.
const (
	DeploymentJob JobKind = iota // of a deployment
	LeaseJob                     // of a lease
)

// JobKey is the key of a job in the database. Seq is that of its deployment or lease.
type JobKey struct {
	Kind JobKind
	Seq  int64
}

// Job is the job of a deployment or of a lease. Each deployment and each lease has one job.
type Job struct {
	JobKey
	ID        string // of the deployment or the lease
	JobID     string
	Stack     string // of the deployment: its id; empty for a lease
	Version   int    // of the deployment; 0 for a lease
	Status    string
	Ended     string    // reason for the end; empty before the end
	Modified  time.Time // the end of the job if it has ended
	Heartbeat time.Time // the last one of a deployment's job; zero before the claim
	Steps     []Step
}

// Step is a step of a job.
type Step struct {
	Name     string
	Status   string
	Started  time.Time // zero before the start
	Modified time.Time // the last change of the status or of the log; zero before the first
	Lines    int       // of the log, with those that are not stored
	Stored   int64     // size of the log in the database in bytes: the sum of [Batch.Size]
}

// sql returns a query for the tables of a kind of job: in place of {jobs}, {steps} and {batches} it has the names of
// the tables, in place of {owner} the column of steps and batches that refers to the job, and in place of {stack},
// {version} and {heartbeat} the columns of a deployment, or ” and 0.
func (k JobKind) sql(query string) string {
	if k == LeaseJob {
		return strings.NewReplacer("{jobs}", "leases", "{steps}", "lease_steps", "{batches}", "lease_batches",
			"{owner}", "lease", "{stack}", "''", "{version}", "0", "{heartbeat}", "0").Replace(query)
	}
	return strings.NewReplacer("{jobs}", "deployments", "{steps}", "steps", "{batches}", "batches",
		"{owner}", "deployment", "{stack}", "stack", "{version}", "version", "{heartbeat}", "heartbeat").Replace(query)
}

const selectJob = `SELECT seq, id, job, status, ended, {stack}, {version}, modified, {heartbeat} FROM {jobs} `

// JobAt returns the job with this key.
func (t *Tx) JobAt(key JobKey) (Job, bool, error) {
	return t.job(key.Kind, key.Kind.sql(selectJob+`WHERE seq = ?`), key.Seq)
}

// JobOf returns the job of the deployment or of the lease with this id.
func (t *Tx) JobOf(kind JobKind, id string) (Job, bool, error) {
	return t.job(kind, kind.sql(selectJob+`WHERE id = ?`), id)
}

// Job returns the job with this id.
func (t *Tx) Job(kind JobKind, id string) (Job, bool, error) {
	return t.job(kind, kind.sql(selectJob+`WHERE job = ?`), id)
}

func (t *Tx) job(kind JobKind, query string, key any) (Job, bool, error) {
	j := Job{JobKey: JobKey{Kind: kind}}
	var modified, heartbeat int64
	found, err := t.get([]any{
		&j.Seq, &j.ID, &j.JobID, &j.Status, &j.Ended, &j.Stack, &j.Version, &modified, &heartbeat,
	}, query, key)
	if err != nil || !found {
		return j, false, err
	}
	j.Modified, j.Heartbeat = FromNanos(modified), FromNanos(heartbeat)
	j.Steps, err = t.Steps(j.JobKey)
	return j, true, err
}

// Steps returns the steps of a job in their order.
func (t *Tx) Steps(j JobKey) ([]Step, error) {
	return rows(t, func(scan func(...any) error) (s Step, err error) {
		var started, modified int64
		err = scan(&s.Name, &s.Status, &started, &modified, &s.Lines, &s.Stored)
		s.Started, s.Modified = FromNanos(started), FromNanos(modified)
		return s, err
	}, j.Kind.sql(`SELECT name, status, started, modified, line_count, stored_bytes FROM {steps}
		WHERE {owner} = ? ORDER BY number`), j.Seq)
}

// addSteps stores the steps of a new job.
func (t *Tx) addSteps(j JobKey, names []string) error {
	for i, name := range names {
		_, err := t.exec(j.Kind.sql(`INSERT INTO {steps} ({owner}, number, name, status)
			VALUES (?, ?, ?, 'not-started')`), j.Seq, i, name)
		if err != nil {
			return err
		}
	}
	return nil
}

// SetJob changes the status of a job, and the reason for its end.
func (t *Tx) SetJob(j JobKey, status, ended string, now time.Time) error {
	_, err := t.exec(j.Kind.sql(`UPDATE {jobs} SET status = ?, ended = ?, modified = ? WHERE seq = ?`),
		status, ended, ToNanos(now), j.Seq)
	return err
}

// SetStep changes the status of a step. If the step has this status already, SetStep changes nothing.
func (t *Tx) SetStep(j JobKey, number int, status string, now time.Time) error {
	_, err := t.exec(j.Kind.sql(`UPDATE {steps} SET status = ?, modified = ?,
			started = CASE WHEN started = 0 AND ? <> 'not-started' THEN ? ELSE started END
		WHERE {owner} = ? AND number = ? AND status <> ?`),
		status, ToNanos(now), status, ToNanos(now), j.Seq, number, status)
	return err
}
