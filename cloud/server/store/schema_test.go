package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMigrateAdopts opens a database of a release without migrations, twice.
func TestMigrateAdopts(t *testing.T) {
	directory := t.TempDir()
	old, err := connect(filepath.Join(directory, "cloud.db"), "immediate", 1)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile("migrations/00001_schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		string(first), `INSERT INTO users (name) VALUES ('first')`,
		`INSERT INTO tokens (hash, kind, subject) VALUES (x'01', 'user', 'first'), (x'02', 'pool', 'p')`,
		`PRAGMA user_version = 1`,
	} {
		if _, err := old.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		db, err := Open(t.Context(), directory)
		if err != nil {
			t.Fatal(err)
		}
		var name string
		var tokens []AccessToken
		if err := db.Read(t.Context(), func(x *Tx) (err error) {
			if tokens, err = x.AccessTokens("first", true); err != nil {
				return err
			}
			_, err = x.get([]any{&name}, `SELECT name FROM users`)
			return err
		}); err != nil || name != "first" || len(tokens) != 1 {
			t.Errorf("the user is %q with the tokens %+v, %v, want first with one token", name, tokens, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMigrateRefusesLaterRelease(t *testing.T) {
	directory := t.TempDir()
	db, err := Open(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(x *Tx) error {
		_, err := x.exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (77, 1)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = Open(t.Context(), directory); err == nil || !strings.Contains(err.Error(), "version 77") ||
		!strings.Contains(err.Error(), "use the release that wrote it") {
		t.Errorf("the database of a later release: %v", err)
	}
}
