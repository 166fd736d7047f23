package store

import "time"

// DeploymentUpdates returns the updates that the job of a deployment has made, oldest first.
func (t *Tx) DeploymentUpdates(deployment string) ([]Update, error) {
	return rows(t, scanUpdate, selectUpdates+`WHERE deployment = ? ORDER BY created, id`, deployment)
}

// LockedByDeployment reports whether an update of a deployment holds the lock of its stack.
func (t *Tx) LockedByDeployment(deployment string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM updates WHERE deployment = ? AND status = 'running' AND dry_run = 0
		LIMIT 1`, deployment)
}

// UpdatesOfEndedJobs returns at most limit running updates whose deployment has ended. Those of a cancelled
// deployment are returned if it was cancelled before a time.
func (t *Tx) UpdatesOfEndedJobs(cancelledBefore time.Time, limit int) ([]Update, error) {
	return rows(t, scanUpdate, selectUpdates+`WHERE status = 'running' AND deployment IN (
			SELECT id FROM deployments WHERE id = updates.deployment AND ended <> ''
				AND (ended <> 'cancel' OR modified <= ?))
		ORDER BY expires LIMIT ?`, ToNanos(cancelledBefore), limit)
}
