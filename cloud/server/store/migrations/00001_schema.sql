-- The schema of the releases without migrations.
-- +goose Up
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
CREATE INDEX tokens_by_end ON tokens (expires) WHERE expires > 0; -- tokens of pools that were exchanged for OIDC tokens

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

-- pool is '' while the routing decides; requested is pool before the claim, for a claim that is lost; ended is the
-- reason of its end: steps, cancel, silence, age, superseded or pool
CREATE TABLE deployments (
	seq          INTEGER PRIMARY KEY AUTOINCREMENT,
	id           TEXT NOT NULL UNIQUE,
	job          TEXT NOT NULL UNIQUE,
	stack        TEXT NOT NULL REFERENCES stacks (id) ON DELETE CASCADE,
	organization TEXT NOT NULL,
	pool         TEXT NOT NULL,
	requested    TEXT NOT NULL DEFAULT '',
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
	definition   BLOB NOT NULL, -- sealed
	UNIQUE (stack, version)
);
CREATE INDEX queue ON deployments (organization, pool, seq) WHERE status = 'not-started';
CREATE INDEX active ON deployments (stack) WHERE status IN ('accepted', 'running');
CREATE INDEX deployments_by_end ON deployments (modified) WHERE ended <> '';

CREATE TABLE steps (
	deployment INTEGER NOT NULL REFERENCES deployments (seq) ON DELETE CASCADE,
	number     INTEGER NOT NULL,
	name       TEXT NOT NULL,
	status     TEXT NOT NULL,
	started    INTEGER NOT NULL DEFAULT 0,
	modified   INTEGER NOT NULL DEFAULT 0,
	lines      INTEGER NOT NULL DEFAULT 0, -- of its log
	stored     INTEGER NOT NULL DEFAULT 0, -- size of its log in the database
	PRIMARY KEY (deployment, number)
) WITHOUT ROWID;

-- Lines that are not stored have a row in place of theirs: cut is the reason (limit or disk), bytes their size, and
-- lines contains one empty line with the time of the last cut.
CREATE TABLE batches (
	id         INTEGER PRIMARY KEY,
	deployment INTEGER NOT NULL REFERENCES deployments (seq) ON DELETE CASCADE,
	step       INTEGER NOT NULL,
	start      INTEGER NOT NULL, -- index of the first line
	count      INTEGER NOT NULL,
	lines      BLOB NOT NULL,
	bytes      INTEGER NOT NULL DEFAULT 0, -- of the text
	cut        TEXT NOT NULL DEFAULT '',
	UNIQUE (deployment, step, start)
);
CREATE INDEX cuts ON batches (deployment, step, start) WHERE cut <> '';

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
	stored   INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (lease, number)
) WITHOUT ROWID;

CREATE TABLE lease_batches (
	id    INTEGER PRIMARY KEY,
	lease INTEGER NOT NULL REFERENCES leases (seq) ON DELETE CASCADE,
	step  INTEGER NOT NULL,
	start INTEGER NOT NULL,
	count INTEGER NOT NULL,
	lines BLOB NOT NULL,
	bytes INTEGER NOT NULL DEFAULT 0,
	cut   TEXT NOT NULL DEFAULT '',
	UNIQUE (lease, step, start)
);
CREATE INDEX lease_cuts ON lease_batches (lease, step, start) WHERE cut <> '';
