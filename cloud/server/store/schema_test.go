package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		`INSERT INTO tokens (hash, kind, subject) VALUES (x'01', 'user', 'first'), (x'02', 'pool', 'p'),
			(x'03', 'job', 'running'), (x'04', 'job', 'ended')`,
		`INSERT INTO organizations (name) VALUES ('acme')`,
		`INSERT INTO stacks (id, organization, project, name, created, tags, secret_key)
			VALUES ('s', 'acme', 'p', 's', 1, '{}', x'00')`,
		`INSERT INTO deployments (id, job, stack, organization, pool, version, operation, status, ended, inherits,
				initiator, requester, created, modified, definition)
			VALUES ('running', 'j1', 's', 'acme', '', 1, 'update', 'running', '', 1, '', '', 5, 7, x'00'),
				('ended', 'j2', 's', 'acme', '', 2, 'update', 'failed', 'steps', 1, '', '', 5, 7, x'00')`,
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
		var name, running string
		var expires int64
		var tokens []AccessToken
		if err := db.Read(t.Context(), func(x *Tx) (err error) {
			if tokens, err = x.AccessTokens("first", true); err != nil {
				return err
			}
			_, err = x.get([]any{&name, &running, &expires}, `SELECT name, d.id, sum(expires)
				FROM users, tokens, deployments d WHERE running_stack = 's'`)
			return err
		}); err != nil || name != "first" || len(tokens) != 1 {
			t.Errorf("the user is %q with the tokens %+v, %v, want first with one token", name, tokens, err)
		}
		if running != "running" || expires != int64(24*time.Hour)+7 {
			t.Errorf("deployment %q runs, and the tokens expire at %d: want those of the ended job a day after its end",
				running, expires)
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
