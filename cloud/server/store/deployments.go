package store

import (
	"errors"
	"fmt"
	"time"
)

// Deployment is a deployment as it is read. Its job is a [Job] with the same key.
type Deployment struct {
	Seq       int64
	ID        string
	Version   int
	Created   time.Time
	Modified  time.Time
	Claimed   time.Time // zero before the claim
	Heartbeat time.Time // the last of the job; zero before the claim
	Status    string
	Ended     string // reason for the end; empty before the end
	Operation string
	Project   string
	Stack     string // its name
	Pool      string // its id; empty while any pool may claim the deployment
	Agent     string // that claimed the deployment, for people; empty before the claim
	PoolName  string // empty if there is no such pool
	Requester string
	Initiator string
	Inherits  bool
}

const selectDeployments = `SELECT d.seq, d.id, d.version, d.created, d.modified, d.claimed, d.status, d.ended,
		d.operation, s.project, s.name, d.pool, COALESCE(p.name, ''), d.requester, d.initiator, d.inherits,
		d.agent, d.heartbeat
	FROM deployments d JOIN stacks s ON s.id = d.stack LEFT JOIN pools p ON p.id = d.pool `

func scanDeployment(scan func(...any) error) (d Deployment, err error) {
	var created, modified, claimed, heartbeat int64
	err = scan(&d.Seq, &d.ID, &d.Version, &created, &modified, &claimed, &d.Status, &d.Ended,
		&d.Operation, &d.Project, &d.Stack, &d.Pool, &d.PoolName, &d.Requester, &d.Initiator, &d.Inherits,
		&d.Agent, &heartbeat)
	d.Created, d.Modified, d.Claimed = FromNanos(created), FromNanos(modified), FromNanos(claimed)
	d.Heartbeat = FromNanos(heartbeat)
	return d, err
}

// Deployment returns the deployment with this key, which must exist.
func (t *Tx) Deployment(seq int64) (Deployment, error) {
	d, found, err := one(t, scanDeployment, selectDeployments+`WHERE d.seq = ?`, seq)
	if err == nil && !found {
		err = fmt.Errorf("read from the database: there is no deployment %d", seq)
	}
	return d, err
}

// Deployments returns a page of the deployments of a stack, the newest first.
func (t *Tx) Deployments(stack string, limit, offset int64) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.stack = ? ORDER BY d.version DESC LIMIT ? OFFSET ?`,
		stack, limit, offset)
}

// OldestDeployments returns a page of the deployments of a stack, the oldest first.
func (t *Tx) OldestDeployments(stack string, limit, offset int64) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.stack = ? ORDER BY d.version LIMIT ? OFFSET ?`,
		stack, limit, offset)
}

// CountDeployments returns the number of deployments of a stack.
func (t *Tx) CountDeployments(stack string) (count int64, err error) {
	_, err = t.get([]any{&count}, `SELECT count(*) FROM deployments WHERE stack = ?`, stack)
	return count, err
}

// DeploymentID returns the id of a deployment of a stack by its version.
func (t *Tx) DeploymentID(stack string, version int64) (id string, found bool, err error) {
	found, err = t.get([]any{&id}, `SELECT id FROM deployments WHERE stack = ? AND version = ?`, stack, version)
	return id, found, err
}

// RunsDeployment reports whether a deployment of a stack is claimed or running.
func (t *Tx) RunsDeployment(stack string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM deployments WHERE running_stack = ?`, stack)
}

// DeploymentRequester returns the user who has requested a deployment, which must exist.
func (t *Tx) DeploymentRequester(id string) (user string, err error) {
	_, err = t.get([]any{&user}, `SELECT requester FROM deployments WHERE id = ?`, id)
	return user, err
}

// StackOfDeployment returns the names of the stack of a deployment. They are empty if there is no such deployment.
func (t *Tx) StackOfDeployment(id string) (organization, project, name string, err error) {
	_, err = t.get([]any{&organization, &project, &name}, `SELECT s.organization, s.project, s.name
		FROM deployments d JOIN stacks s ON s.id = d.stack WHERE d.id = ?`, id)
	return organization, project, name, err
}

// DeploymentStatus returns the status of a deployment of the organization of a pool.
func (t *Tx) DeploymentStatus(id, pool string) (status string, found bool, err error) {
	found, err = t.get([]any{&status}, `SELECT d.status FROM deployments d
		JOIN pools p ON p.organization = d.organization WHERE d.id = ? AND p.id = ?`, id, pool)
	return status, found, err
}

// NextDeployment returns the version of the next deployment of a stack, and counts this deployment.
func (t *Tx) NextDeployment(stack string) (version int, err error) {
	if _, err := t.exec(`UPDATE stacks SET deployments = deployments + 1 WHERE id = ?`, stack); err != nil {
		return 0, err
	}
	_, err = t.get([]any{&version}, `SELECT deployments FROM stacks WHERE id = ?`, stack)
	return version, err
}

// NewDeployment is a deployment that is queued.
type NewDeployment struct {
	ID           string
	Job          string // id of its job
	Stack        string // its id
	Organization string
	Pool         string // empty if the routing decides
	Version      int
	Operation    string
	Inherits     bool
	Initiator    string
	Requester    string
	Definition   []byte   // encrypted
	Steps        []string // their names
}

// Enqueue adds a deployment to the queue.
func (t *Tx) Enqueue(d NewDeployment, now time.Time) error {
	seq, err := t.insert(`INSERT INTO deployments (id, job, stack, organization, pool, version, operation,
			status, inherits, initiator, requester, created, modified, definition)
		VALUES (?, ?, ?, ?, ?, ?, ?, 'not-started', ?, ?, ?, ?, ?, ?)`,
		d.ID, d.Job, d.Stack, d.Organization, d.Pool, d.Version, d.Operation,
		d.Inherits, d.Initiator, d.Requester, ToNanos(now), ToNanos(now), d.Definition)
	if err != nil {
		return err
	}
	return t.addSteps(JobKey{DeploymentJob, seq}, d.Steps)
}

// SkipQueued skips the queued deployments of a stack with this operation.
func (t *Tx) SkipQueued(stack, operation string, now time.Time) error {
	_, err := t.exec(`UPDATE deployments SET status = 'skipped', ended = 'superseded', modified = ?
		WHERE stack = ? AND operation = ? AND status = 'not-started'`, ToNanos(now), stack, operation)
	return err
}

// Waiting is a queued deployment.
type Waiting struct {
	Seq int64
	ID  string
	Job string // id of its job
}

// NextWaiting returns the oldest queued deployment that is for a pool and whose stack has no claimed or running
// deployment. A deployment without a pool is for the default pool of the organization, or for the only pool if there
// is no default.
func (t *Tx) NextWaiting(pool string) (w Waiting, found bool, err error) {
	var organization string
	var unrouted bool // whether the pool claims deployments without a pool
	found, err = t.get([]any{&organization, &unrouted}, `SELECT p.organization, o.default_pool = p.id
			OR (o.default_pool = '' AND (SELECT count(*) FROM pools q WHERE q.organization = p.organization) = 1)
		FROM pools p JOIN organizations o ON o.name = p.organization WHERE p.id = ? AND o.paused = 0`, pool)
	if err != nil || !found {
		return w, false, err
	}
	other := pool
	if unrouted {
		other = ""
	}
	found, err = t.get([]any{&w.Seq, &w.ID, &w.Job}, `SELECT d.seq, d.id, d.job FROM deployments d
		WHERE d.status = 'not-started' AND d.organization = ? AND d.pool IN (?, ?)
			AND NOT EXISTS (SELECT 1 FROM deployments r WHERE r.running_stack = d.stack)
			AND NOT EXISTS (SELECT 1 FROM stacks s WHERE s.id = d.stack AND s.paused = 1)
		ORDER BY d.seq LIMIT 1`, organization, pool, other)
	return w, found, err
}

// Claim gives a queued deployment to an agent of a pool. Claimed is false if another agent was faster, or if the stack
// has another claimed or running deployment.
func (t *Tx) Claim(seq int64, pool, agent string, now time.Time) (claimed bool, err error) {
	changed, err := t.exec(`UPDATE deployments SET status = 'accepted', running_stack = stack, claimed = ?,
		heartbeat = ?, modified = ?, requested = pool, pool = ?, agent = ? WHERE seq = ? AND status = 'not-started'`,
		ToNanos(now), ToNanos(now), ToNanos(now), pool, agent, seq)
	if errors.Is(err, ErrDuplicate) {
		return false, nil
	}
	return changed == 1, err
}

// RecordHeartbeat stores the time of a heartbeat of a deployment's job.
func (t *Tx) RecordHeartbeat(seq int64, now time.Time) error {
	_, err := t.exec(`UPDATE deployments SET heartbeat = ? WHERE seq = ?`, ToNanos(now), seq)
	return err
}

// Release lets the next deployment of a stack run if a deployment of it has ended. It reports whether it has.
func (t *Tx) Release(id string) (ended bool, err error) {
	changed, err := t.exec(`UPDATE deployments SET running_stack = NULL WHERE id = ? AND ended <> ''`, id)
	return changed > 0, err
}

// Requeue returns a claimed deployment to the queue, for the same pool as before its claim. If this pool was deleted,
// the deployment is skipped.
func (t *Tx) Requeue(seq int64, now time.Time) error {
	_, err := t.exec(`UPDATE deployments SET status = 'not-started', running_stack = NULL, claimed = 0,
		agent = '', pool = requested, modified = ? WHERE seq = ?`, ToNanos(now), seq)
	if err != nil {
		return err
	}
	_, err = t.exec(`UPDATE deployments SET status = 'skipped', ended = 'pool'
		WHERE seq = ? AND pool <> '' AND pool NOT IN (SELECT id FROM pools)`, seq)
	return err
}

// UnfinishedDeployments returns all deployments that have not ended.
func (t *Tx) UnfinishedDeployments() ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.status IN ('not-started', 'accepted', 'running')`)
}

// EndedBefore returns at most limit deployments that ended before a time, the oldest first. It returns none that is
// the last one of its stack.
func (t *Tx) EndedBefore(end time.Time, limit int) ([]int64, error) {
	return rows(t, scanOne[int64], `SELECT d.seq FROM deployments d JOIN stacks s ON s.id = d.stack
		WHERE d.ended <> '' AND d.modified < ? AND d.version < s.deployments ORDER BY d.modified LIMIT ?`,
		ToNanos(end), limit)
}

// EndedBeyond returns at most limit deployments that ended before a time and are not among the last keep ones of
// their stack.
func (t *Tx) EndedBeyond(keep int, end time.Time, limit int) ([]int64, error) {
	return rows(t, scanOne[int64], `WITH oldest AS (SELECT s.id, (SELECT k.version FROM deployments k
			WHERE k.stack = s.id ORDER BY k.version DESC LIMIT 1 OFFSET ?) AS version FROM stacks s)
		SELECT d.seq FROM oldest JOIN deployments d ON d.stack = oldest.id AND d.version <= oldest.version
		WHERE d.ended <> '' AND d.modified < ? LIMIT ?`, keep, ToNanos(end), limit)
}

// DeleteDeployment deletes an ended deployment with its log, steps and tokens. It deletes at most limit batches of the
// log. If there are more, more is true, and the caller repeats the call in another transaction.
func (t *Tx) DeleteDeployment(seq int64, limit int) (more bool, err error) {
	batches, err := rows(t, scanOne[int64], `SELECT id FROM batches WHERE deployment = ? LIMIT ?`, seq, limit)
	if err != nil {
		return false, err
	}
	for _, id := range batches {
		if _, err := t.exec(`DELETE FROM batches WHERE id = ?`, id); err != nil {
			return false, err
		}
	}
	if len(batches) == limit {
		return true, nil
	}
	_, err = t.exec(`DELETE FROM tokens WHERE kind IN ('job', 'stack')
		AND subject = (SELECT id FROM deployments WHERE seq = ?)`, seq)
	if err != nil {
		return false, err
	}
	_, err = t.exec(`DELETE FROM deployments WHERE seq = ? AND ended <> ''`, seq)
	return false, err
}

// Definition is the definition of a deployment's job, with what it takes to decrypt it.
type Definition struct {
	Sealed    []byte // by the key of the stack
	Operation string // of the deployment; empty if its steps came with the request
	Stack     Stack  // only its id, names and key
}

// Definition returns the definition of a deployment's job.
func (t *Tx) Definition(deployment string) (d Definition, found bool, err error) {
	found, err = t.get([]any{
		&d.Sealed, &d.Operation, &d.Stack.Key, &d.Stack.ID, &d.Stack.Organization, &d.Stack.Project, &d.Stack.Name,
	}, `SELECT d.definition, d.operation, s.secret_key, s.id, s.organization, s.project, s.name
		FROM deployments d JOIN stacks s ON s.id = d.stack WHERE d.id = ?`, deployment)
	return d, found, err
}
