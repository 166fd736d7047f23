package store

// Queue returns a page of the deployments of an organization, the newest first.
func (t *Tx) Queue(organization string, limit, offset int64) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.organization = ? ORDER BY d.seq DESC LIMIT ? OFFSET ?`,
		organization, limit, offset)
}

// OldestQueue returns a page of the deployments of an organization, the oldest first.
func (t *Tx) OldestQueue(organization string, limit, offset int64) ([]Deployment, error) {
	return rows(t, scanDeployment, selectDeployments+`WHERE d.organization = ? ORDER BY d.seq LIMIT ? OFFSET ?`,
		organization, limit, offset)
}

// CountQueue returns the number of deployments of an organization.
func (t *Tx) CountQueue(organization string) (count int64, err error) {
	_, err = t.get([]any{&count}, `SELECT count(*) FROM deployments WHERE organization = ?`, organization)
	return count, err
}

// QueueCounts returns the numbers of an organization's deployments by their status.
func (t *Tx) QueueCounts(organization string) (map[string]int64, error) {
	counts := map[string]int64{}
	_, err := rows(t, func(scan func(...any) error) (struct{}, error) {
		var status string
		var count int64
		err := scan(&status, &count)
		counts[status] = count
		return struct{}{}, err
	}, `SELECT status, count(*) FROM deployments WHERE organization = ? GROUP BY status`, organization)
	return counts, err
}

// ActiveCounts returns the numbers of the deployments of all organizations that have not ended, by their status.
func (t *Tx) ActiveCounts() (map[string]int64, error) {
	counts := map[string]int64{}
	for _, status := range []string{"not-started", "accepted", "running"} {
		var count int64
		if _, err := t.get([]any{&count}, `SELECT count(*) FROM deployments WHERE status = ?`, status); err != nil {
			return nil, err
		}
		counts[status] = count
	}
	return counts, nil
}

// Paused reports whether the deployments of an organization, and those of a stack, are not handed out. An empty
// stack is not paused.
func (t *Tx) Paused(organization, stack string) (byOrganization, byStack bool, err error) {
	_, err = t.get([]any{&byOrganization}, `SELECT paused FROM organizations WHERE name = ?`, organization)
	if err != nil {
		return false, false, err
	}
	_, err = t.get([]any{&byStack}, `SELECT paused FROM stacks WHERE id = ?`, stack)
	return byOrganization, byStack, err
}

// PauseOrganization pauses or resumes the deployments of an organization.
func (t *Tx) PauseOrganization(organization string, paused bool) error {
	_, err := t.exec(`UPDATE organizations SET paused = ? WHERE name = ?`, paused, organization)
	return err
}

// PauseStack pauses or resumes the deployments of a stack.
func (t *Tx) PauseStack(stack string, paused bool) error {
	_, err := t.exec(`UPDATE stacks SET paused = ? WHERE id = ?`, paused, stack)
	return err
}
