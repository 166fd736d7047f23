package store

import "time"

// Pool is a pool of agents.
type Pool struct {
	ID          string
	Name        string
	Description string
	Created     time.Time
	Seen        time.Time // the last call of an agent; zero before the first
}

const poolColumns = `id, name, description, created, seen`

func scanPool(scan func(...any) error) (p Pool, err error) {
	var created, seen int64
	err = scan(&p.ID, &p.Name, &p.Description, &created, &seen)
	p.Created, p.Seen = FromNanos(created), FromNanos(seen)
	return p, err
}

// CreatePool stores a pool. The error is ErrDuplicate if the organization has a pool with its name.
func (t *Tx) CreatePool(organization string, p Pool) error {
	_, err := t.exec(`INSERT INTO pools (id, organization, name, description, created) VALUES (?, ?, ?, ?, ?)`,
		p.ID, organization, p.Name, p.Description, ToNanos(p.Created))
	return err
}

// Pool returns a pool of an organization.
func (t *Tx) Pool(organization, id string) (Pool, bool, error) {
	return one(t, scanPool, `SELECT `+poolColumns+` FROM pools WHERE id = ? AND organization = ?`, id, organization)
}

// Pools returns the pools of an organization, the oldest first.
func (t *Tx) Pools(organization string) ([]Pool, error) {
	return rows(t, scanPool, `SELECT `+poolColumns+` FROM pools WHERE organization = ? ORDER BY created, id`,
		organization)
}

// Routing returns the default pool of an organization, which may be empty, and the number of its pools.
func (t *Tx) Routing(organization string) (standard string, pools int, err error) {
	_, err = t.get([]any{&standard, &pools}, `SELECT o.default_pool,
			(SELECT count(*) FROM pools p WHERE p.organization = o.name)
		FROM organizations o WHERE o.name = ?`, organization)
	return standard, pools, err
}

// EditPool changes the name and the description of a pool. The error is ErrDuplicate if another pool has the name.
func (t *Tx) EditPool(id, name, description string) error {
	_, err := t.exec(`UPDATE pools SET name = ?, description = ? WHERE id = ?`, name, description, id)
	return err
}

// PoolStacks returns the number of stacks whose settings refer to a pool.
func (t *Tx) PoolStacks(id string) (count int, err error) {
	_, err = t.get([]any{&count}, `SELECT count(*) FROM stacks WHERE pool = ?`, id)
	return count, err
}

// PoolJobs returns the number of claimed and running deployments of a pool, and of its activities that are leased.
func (t *Tx) PoolJobs(id string) (count int, err error) {
	_, err = t.get([]any{&count}, `SELECT
		(SELECT count(*) FROM deployments WHERE pool = ? AND status IN ('accepted', 'running')) +
		(SELECT count(*) FROM activities WHERE pool = ? AND status IN ('Pending', 'Executing'))`, id, id)
	return count, err
}

// DeletePool deletes a pool with its tokens and agents, and skips its queued deployments.
func (t *Tx) DeletePool(id string, now time.Time) error {
	if _, err := t.exec(`DELETE FROM pools WHERE id = ?`, id); err != nil {
		return err
	}
	if _, err := t.exec(`DELETE FROM tokens WHERE kind = 'pool' AND subject = ?`, id); err != nil {
		return err
	}
	if _, err := t.exec(`UPDATE organizations SET default_pool = '' WHERE default_pool = ?`, id); err != nil {
		return err
	}
	_, err := t.exec(`UPDATE deployments SET status = 'skipped', ended = 'pool', modified = ?
		WHERE pool = ? AND status = 'not-started'`, ToNanos(now), id)
	return err
}

// Agent is the sender of calls of a pool. Properties that its calls do not state are empty.
type Agent struct{ Hostname, IP, PID, Version, Platform string }

// SeenAgent is an agent, with the time of its last call that was stored.
type SeenAgent struct {
	Agent
	Seen time.Time
}

// RecordAgent stores the time of a call of an agent, unless its pool was deleted. It deletes all agents that were last
// seen before oldest.
func (t *Tx) RecordAgent(pool string, a Agent, now, oldest time.Time) error {
	if _, err := t.exec(`DELETE FROM agents WHERE seen < ?`, ToNanos(oldest)); err != nil {
		return err
	}
	exists, err := t.exec(`UPDATE pools SET seen = ? WHERE id = ?`, ToNanos(now), pool)
	if err != nil || exists == 0 {
		return err
	}
	known, err := t.exec(`UPDATE agents SET seen = ? WHERE pool = ? AND hostname = ? AND ip = ? AND pid = ?
		AND version = ? AND platform = ?`, ToNanos(now), pool, a.Hostname, a.IP, a.PID, a.Version, a.Platform)
	if err != nil || known > 0 {
		return err
	}
	_, err = t.exec(`INSERT INTO agents (pool, hostname, ip, pid, version, platform, seen)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, pool, a.Hostname, a.IP, a.PID, a.Version, a.Platform, ToNanos(now))
	return err
}

// Agents returns the agents of a pool that were seen since a time, the latest first.
func (t *Tx) Agents(pool string, since time.Time) ([]SeenAgent, error) {
	return rows(t, func(scan func(...any) error) (a SeenAgent, err error) {
		var seen int64
		err = scan(&a.Hostname, &a.IP, &a.PID, &a.Version, &a.Platform, &seen)
		a.Seen = FromNanos(seen)
		return a, err
	}, `SELECT hostname, ip, pid, version, platform, seen FROM agents WHERE pool = ? AND seen >= ?
		ORDER BY seen DESC, hostname, pid`, pool, ToNanos(since))
}
