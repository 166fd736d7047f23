package store

// Meta returns a value of the service itself. Found is false if it has no such value.
func (t *Tx) Meta(name string) (value []byte, found bool, err error) {
	found, err = t.get([]any{&value}, `SELECT value FROM meta WHERE name = ?`, name)
	return value, found, err
}

// AddMeta adds a value of the service itself.
func (t *Tx) AddMeta(name string, value []byte) error {
	_, err := t.exec(`INSERT INTO meta (name, value) VALUES (?, ?)`, name, value)
	return err
}

// AnyStackKey returns the id and the wrapped key of some stack. Found is false without a stack.
func (t *Tx) AnyStackKey() (id string, wrapped []byte, found bool, err error) {
	found, err = t.get([]any{&id, &wrapped}, `SELECT id, secret_key FROM stacks LIMIT 1`)
	return id, wrapped, found, err
}
