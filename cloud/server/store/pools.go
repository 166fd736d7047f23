package store

// Routing returns the default pool of an organization, which may be empty, and the number of its pools.
func (t *Tx) Routing(organization string) (standard string, pools int, err error) {
	_, err = t.Get([]any{&standard, &pools}, `SELECT o.default_pool,
			(SELECT count(*) FROM pools p WHERE p.organization = o.name)
		FROM organizations o WHERE o.name = ?`, organization)
	return standard, pools, err
}
