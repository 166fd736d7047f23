package server

import (
	"context"
	"database/sql"
	"fmt"
)

// migrations are the steps of the schema, in order. The database's
// user_version is the number of those that it has seen; one that has been
// released is never changed.
func migrations() []string {
	return []string{`
CREATE TABLE organizations (
	name         TEXT PRIMARY KEY,
	default_pool TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE TABLE users (
	name TEXT PRIMARY KEY
) WITHOUT ROWID;

-- kind: user, pool, job or stack; subject: the user's name, the pool's id, or the deployment's id
CREATE TABLE tokens (
	hash    BLOB PRIMARY KEY,
	kind    TEXT NOT NULL,
	subject TEXT NOT NULL,
	expires INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX tokens_of ON tokens (kind, subject);

CREATE TABLE pools (
	id           TEXT PRIMARY KEY,
	organization TEXT NOT NULL REFERENCES organizations (name),
	name         TEXT NOT NULL,
	description  TEXT NOT NULL,
	created      INTEGER NOT NULL,
	seen         INTEGER NOT NULL DEFAULT 0,
	UNIQUE (organization, name)
) WITHOUT ROWID;

CREATE TABLE agents (
	pool     TEXT NOT NULL REFERENCES pools (id) ON DELETE CASCADE,
	hostname TEXT NOT NULL,
	ip       TEXT NOT NULL,
	pid      TEXT NOT NULL,
	version  TEXT NOT NULL,
	platform TEXT NOT NULL,
	seen     INTEGER NOT NULL,
	PRIMARY KEY (pool, hostname, ip, pid, version, platform)
) WITHOUT ROWID;

-- secret_key is wrapped by the master key; settings are JSON whose secrets are ciphertexts
CREATE TABLE stacks (
	id           TEXT PRIMARY KEY,
	organization TEXT NOT NULL REFERENCES organizations (name),
	project      TEXT NOT NULL,
	name         TEXT NOT NULL,
	created      INTEGER NOT NULL,
	tags         TEXT NOT NULL,
	secret_key   BLOB NOT NULL,
	settings     TEXT,
	pool         TEXT NOT NULL DEFAULT '', -- that the settings name
	deployments  INTEGER NOT NULL DEFAULT 0, -- the version of the last one
	UNIQUE (organization, project, name)
) WITHOUT ROWID;
CREATE INDEX stacks_by_pool ON stacks (pool) WHERE pool <> '';

-- pool is '' while the routing decides; ended says what ended it: steps, cancel, silence or age
CREATE TABLE deployments (
	seq          INTEGER PRIMARY KEY AUTOINCREMENT,
	id           TEXT NOT NULL UNIQUE,
	job          TEXT NOT NULL UNIQUE,
	stack        TEXT NOT NULL REFERENCES stacks (id) ON DELETE CASCADE,
	organization TEXT NOT NULL,
	pool         TEXT NOT NULL,
	version      INTEGER NOT NULL,
	operation    TEXT NOT NULL,
	status       TEXT NOT NULL,
	ended        TEXT NOT NULL DEFAULT '',
	inherits     INTEGER NOT NULL,
	initiator    TEXT NOT NULL,
	requester    TEXT NOT NULL,
	created      INTEGER NOT NULL,
	modified     INTEGER NOT NULL,
	claimed      INTEGER NOT NULL DEFAULT 0,
	heard        INTEGER NOT NULL DEFAULT 0,
	definition   BLOB NOT NULL, -- sealed
	UNIQUE (stack, version)
);
CREATE INDEX queue ON deployments (organization, pool, seq) WHERE status = 'not-started';
CREATE INDEX active ON deployments (stack) WHERE status IN ('accepted', 'running');

CREATE TABLE steps (
	deployment INTEGER NOT NULL REFERENCES deployments (seq) ON DELETE CASCADE,
	number     INTEGER NOT NULL,
	name       TEXT NOT NULL,
	status     TEXT NOT NULL,
	started    INTEGER NOT NULL DEFAULT 0,
	modified   INTEGER NOT NULL DEFAULT 0,
	lines      INTEGER NOT NULL DEFAULT 0, -- of its log
	PRIMARY KEY (deployment, number)
) WITHOUT ROWID;

CREATE TABLE batches (
	id         INTEGER PRIMARY KEY,
	deployment INTEGER NOT NULL REFERENCES deployments (seq) ON DELETE CASCADE,
	step       INTEGER NOT NULL,
	start      INTEGER NOT NULL, -- index of the first line
	count      INTEGER NOT NULL,
	lines      BLOB NOT NULL,
	UNIQUE (deployment, step, start)
);
`, `
-- tokens of pools that were exchanged for OIDC tokens expire
CREATE INDEX tokens_by_end ON tokens (expires) WHERE expires > 0;
`}
}

// migrate brings the database up to date. One that is newer than this program
// is refused: it may mean things that this program does not know.
func migrate(ctx context.Context, db *sql.DB) error {
	return within(ctx, db, func(t *tx) error {
		var version int
		if _, err := t.get([]any{&version}, `PRAGMA user_version`); err != nil {
			return err
		}
		steps := migrations()
		if version > len(steps) {
			return fmt.Errorf("open the database: its schema has version %d and this program knows up to %d: use the release that wrote it, or a newer one", version, len(steps))
		}
		for ; version < len(steps); version++ {
			if _, err := t.exec(steps[version]); err != nil {
				return fmt.Errorf("bring the database to version %d: %w", version+1, err)
			}
		}
		_, err := t.exec(fmt.Sprintf(`PRAGMA user_version = %d`, version))
		return err
	})
}
