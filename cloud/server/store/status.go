package store

// SchemaVersion returns the number of the last migration of the database.
func (t *Tx) SchemaVersion() (version int64, err error) {
	_, err = t.get([]any{&version}, `SELECT max(version_id) FROM goose_db_version`)
	return version, err
}
