package store

// HasUsers reports whether there is a user. A new database has none.
func (t *Tx) HasUsers() (bool, error) { return t.get([]any{new(int)}, `SELECT 1 FROM users LIMIT 1`) }

// AddUser stores a user.
func (t *Tx) AddUser(name string) error {
	_, err := t.exec(`INSERT INTO users (name) VALUES (?)`, name)
	return err
}

// AddOrganization stores an organization.
func (t *Tx) AddOrganization(name string) error {
	_, err := t.exec(`INSERT INTO organizations (name) VALUES (?)`, name)
	return err
}

// SetDefaultPool changes the pool of the deployments that have none. It may be empty.
func (t *Tx) SetDefaultPool(organization, pool string) error {
	_, err := t.exec(`UPDATE organizations SET default_pool = ? WHERE name = ?`, pool, organization)
	return err
}

// HasOrganization reports whether an organization exists.
func (t *Tx) HasOrganization(name string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM organizations WHERE name = ?`, name)
}

// HasUser reports whether a user exists.
func (t *Tx) HasUser(name string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM users WHERE name = ?`, name)
}
