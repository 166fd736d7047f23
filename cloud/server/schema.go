package server

import (
	"context"
	"database/sql"
	"fmt"
)

// migrations returns the migrations of the schema, in order. The user_version of a database
// is the number of migrations that were applied. A released migration is never changed.
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

-- pool is '' while the routing decides; ended is the reason of its end: steps, cancel, silence, age, superseded or pool
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
`, `
-- leased work; lease is the seq of the last lease, or 0; retries are those that are left; delay is in nanoseconds
CREATE TABLE activities (
	seq          INTEGER PRIMARY KEY AUTOINCREMENT,
	id           TEXT NOT NULL UNIQUE,
	organization TEXT NOT NULL,
	pool         TEXT NOT NULL,
	kind         TEXT NOT NULL,
	name         TEXT NOT NULL,
	status       TEXT NOT NULL,
	reason       TEXT NOT NULL DEFAULT '', -- of the status; may be empty
	lease        INTEGER NOT NULL DEFAULT 0,
	retries      INTEGER NOT NULL,
	delay        INTEGER NOT NULL,
	due          INTEGER NOT NULL, -- not leased before
	requester    TEXT NOT NULL,
	created      INTEGER NOT NULL,
	modified     INTEGER NOT NULL,
	definition   BLOB NOT NULL -- sealed by the master key
);
CREATE INDEX activities_of ON activities (pool, status, seq);

-- one job for each lease; status and ended are those of the job, as in deployments; result is what its agent reported
CREATE TABLE leases (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT,
	activity INTEGER NOT NULL REFERENCES activities (seq) ON DELETE CASCADE,
	id       TEXT NOT NULL UNIQUE,
	job      TEXT NOT NULL UNIQUE,
	agent    TEXT NOT NULL,
	status   TEXT NOT NULL,
	ended    TEXT NOT NULL DEFAULT '',
	result   TEXT NOT NULL DEFAULT '',
	acquired INTEGER NOT NULL,
	expires  INTEGER NOT NULL,
	modified INTEGER NOT NULL
);
CREATE INDEX leases_of ON leases (activity);

CREATE TABLE lease_steps (
	lease    INTEGER NOT NULL REFERENCES leases (seq) ON DELETE CASCADE,
	number   INTEGER NOT NULL,
	name     TEXT NOT NULL,
	status   TEXT NOT NULL,
	started  INTEGER NOT NULL DEFAULT 0,
	modified INTEGER NOT NULL DEFAULT 0,
	lines    INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (lease, number)
) WITHOUT ROWID;

CREATE TABLE lease_batches (
	id    INTEGER PRIMARY KEY,
	lease INTEGER NOT NULL REFERENCES leases (seq) ON DELETE CASCADE,
	step  INTEGER NOT NULL,
	start INTEGER NOT NULL,
	count INTEGER NOT NULL,
	lines BLOB NOT NULL,
	UNIQUE (lease, step, start)
);
`, `
-- Lines that are not stored have a row in place of theirs: cut is the reason (limit or disk), bytes their size, and
-- lines contains one empty line with the time of the last cut. stored is the size of a step's log in the database.
ALTER TABLE steps ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0; -- of the text
ALTER TABLE batches ADD COLUMN cut TEXT NOT NULL DEFAULT '';
CREATE INDEX cuts ON batches (deployment, step, start) WHERE cut <> '';
UPDATE batches SET bytes = length(lines)
	WHERE deployment IN (SELECT seq FROM deployments WHERE status IN ('accepted', 'running'));
UPDATE steps SET stored = (SELECT coalesce(sum(length(b.lines) + 64), 0) FROM batches b
	WHERE b.deployment = steps.deployment AND b.step = steps.number) WHERE status = 'running';

ALTER TABLE lease_steps ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lease_batches ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lease_batches ADD COLUMN cut TEXT NOT NULL DEFAULT '';
CREATE INDEX lease_cuts ON lease_batches (lease, step, start) WHERE cut <> '';

CREATE INDEX deployments_by_end ON deployments (modified) WHERE ended <> '';
`, `
-- requested is the value of pool before the claim, for a claim that is lost.
ALTER TABLE deployments ADD COLUMN requested TEXT NOT NULL DEFAULT '';
UPDATE deployments SET requested = pool;
`}
}

// migrate applies missing migrations. It refuses a database of a newer program.
func migrate(ctx context.Context, db *sql.DB) error {
	return inTransaction(ctx, db, func(t *tx) error {
		var version int
		if _, err := t.get([]any{&version}, `PRAGMA user_version`); err != nil {
			return err
		}
		steps := migrations()
		if version > len(steps) {
			return fmt.Errorf("open the database: its schema has version %d and this program supports up to %d: "+
				"use the release that wrote it, or a newer one", version, len(steps))
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
