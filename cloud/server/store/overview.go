package store

import (
	"math"
	"time"
)

// DeploymentsBefore returns the newest deployments of an organization, of all stacks, whose Seq is smaller than
// before, or the newest of all if before is 0.
func (t *Tx) DeploymentsBefore(organization string, before int64, limit int) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.organization = ? AND d.seq < ?
		ORDER BY d.seq DESC LIMIT ?`, organization, orMax(before), limit)
}

// ActiveDeploymentsBefore is DeploymentsBefore for the deployments that have not ended.
func (t *Tx) ActiveDeploymentsBefore(organization string, before int64, limit int) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.organization = ?
		AND d.status IN ('not-started', 'accepted', 'running') AND d.seq < ? ORDER BY d.seq DESC LIMIT ?`,
		organization, orMax(before), limit)
}

// CountActiveDeployments returns the number of deployments of an organization that have not ended.
func (t *Tx) CountActiveDeployments(organization string) (n int, err error) {
	_, err = t.get([]any{&n}, `SELECT count(*) FROM deployments WHERE organization = ?
		AND status IN ('not-started', 'accepted', 'running')`, organization)
	return n, err
}

func orMax(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

// PoolOfStack returns the name of the pool in the deployment settings of a stack, or "".
func (t *Tx) PoolOfStack(stack string) (name string, err error) {
	_, err = t.get([]any{&name}, `SELECT p.name FROM stacks s JOIN pools p ON p.id = s.pool WHERE s.id = ?`, stack)
	return name, err
}

// UpdatesBefore returns the newest updates of a stack, also dry runs and those that run, that were created before the
// one with this time and id. The zero time selects all.
func (t *Tx) UpdatesBefore(stack string, created time.Time, id string, limit int) ([]Update, error) {
	before := orMax(ToNanos(created))
	return rows(t, scanUpdate, selectUpdates+`WHERE stack = ? AND created <= ? AND (created < ? OR id < ?)
		ORDER BY created DESC, id DESC LIMIT ?`, stack, before, before, id, limit)
}

// DeploymentVersion returns the version of a deployment, or 0 if there is no such deployment.
func (t *Tx) DeploymentVersion(id string) (version int64, err error) {
	_, err = t.get([]any{&version}, `SELECT version FROM deployments WHERE id = ?`, id)
	return version, err
}
