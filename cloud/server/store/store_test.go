package store

import (
	"errors"
	"testing"
)

// open returns a new database.
func open(t *testing.T) *DB {
	t.Helper()
	db, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestErrDuplicate violates a primary key, a unique key and a foreign key. Only the first two are duplicates, and
// none of them ends the transaction.
func TestErrDuplicate(t *testing.T) {
	const organization = `INSERT INTO organizations (name) VALUES (?)`
	const pool = `INSERT INTO pools (id, organization, name, description, created) VALUES (?, ?, 'name', '', 1)`
	db := open(t)
	err := db.Write(t.Context(), func(x *Tx) error {
		for _, one := range []struct {
			statement string
			arguments []any
			duplicate bool
			fails     bool
		}{
			{organization, []any{"acme"}, false, false},
			{organization, []any{"acme"}, true, true},
			{pool, []any{"first", "acme"}, false, false},
			{pool, []any{"second", "acme"}, true, true},
			{pool, []any{"third", "unknown"}, false, true},
			{organization, []any{"other"}, false, false},
		} {
			_, err := x.exec(one.statement, one.arguments...)
			if errors.Is(err, ErrDuplicate) != one.duplicate || (err != nil) != one.fails {
				t.Errorf("%s with %v: %v", one.statement, one.arguments, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var count int
	if err := db.Read(t.Context(), func(x *Tx) error {
		_, err := x.get([]any{&count}, `SELECT count(*) FROM organizations`)
		return err
	}); err != nil || count != 2 {
		t.Errorf("%d organizations, %v, want 2", count, err)
	}
}
