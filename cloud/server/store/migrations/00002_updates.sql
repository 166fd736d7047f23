-- Updates of stacks, and their states.
-- +goose Up

-- version, updated, update_kind, update_result and resources are those of the last completed update; update_id is
-- the most recent update that is no dry run, running or completed.
ALTER TABLE stacks ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
ALTER TABLE stacks ADD COLUMN updated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE stacks ADD COLUMN update_id VARCHAR(36) NOT NULL DEFAULT '';
ALTER TABLE stacks ADD COLUMN update_kind VARCHAR(20) NOT NULL DEFAULT '';
ALTER TABLE stacks ADD COLUMN update_result VARCHAR(20) NOT NULL DEFAULT '';
ALTER TABLE stacks ADD COLUMN resources BIGINT NOT NULL DEFAULT 0;

CREATE TABLE stack_tags (
	stack VARCHAR(36) NOT NULL REFERENCES stacks (id) ON DELETE CASCADE,
	name  VARCHAR(100) NOT NULL,
	value VARCHAR(1000) NOT NULL,
	PRIMARY KEY (stack, name)
);
CREATE INDEX stack_tags_by_value ON stack_tags (name, value);
INSERT INTO stack_tags (stack, name, value) SELECT stacks.id, tag.key, tag.value FROM stacks, json_each(stacks.tags) AS tag;
ALTER TABLE stacks DROP COLUMN tags;

-- status is not-started, running, succeeded, failed or cancelled. version is that of the stack after this update, NULL
-- for a dry run and before the start. lease is the hash of the token, NULL before the start. expires is the end of the
-- lease, or of an update that is not started. environment and config are JSON objects, changes are the resource changes
-- of the last summary event. deployment is the id of the deployment whose job made the update, or empty. journal is the
-- version of the journal, or 0 for plain checkpoints. client is the version of the client, such as v3.259.0, or empty.
CREATE TABLE updates (
	id          VARCHAR(36) PRIMARY KEY,
	stack       VARCHAR(36) NOT NULL REFERENCES stacks (id) ON DELETE CASCADE,
	kind        VARCHAR(20) NOT NULL,
	dry_run     INTEGER NOT NULL,
	status      VARCHAR(20) NOT NULL,
	version     BIGINT,
	lease       BINARY(32) UNIQUE,
	expires     BIGINT NOT NULL DEFAULT 0,
	requester   VARCHAR(100) NOT NULL,
	message     MEDIUMTEXT NOT NULL,
	environment MEDIUMTEXT NOT NULL,
	config      MEDIUMTEXT NOT NULL,
	changes     MEDIUMTEXT NOT NULL,
	resources   BIGINT NOT NULL DEFAULT 0,
	deployment  VARCHAR(36) NOT NULL DEFAULT '',
	journal     INTEGER NOT NULL DEFAULT 0,
	client      VARCHAR(100) NOT NULL DEFAULT '',
	created     BIGINT NOT NULL,
	started     BIGINT NOT NULL DEFAULT 0,
	ended       BIGINT NOT NULL DEFAULT 0,
	UNIQUE (stack, version)
);
CREATE INDEX updates_by_time ON updates (stack, created);
CREATE INDEX updates_of_deployment ON updates (deployment, created);
CREATE INDEX updates_by_expiry ON updates (status, expires);

-- The lock of a stack. A second row for the stack is refused, so at most one update that is no dry run is running.
CREATE TABLE locks (
	stack     VARCHAR(36) PRIMARY KEY REFERENCES stacks (id) ON DELETE CASCADE,
	update_id VARCHAR(36) NOT NULL REFERENCES updates (id) ON DELETE CASCADE
);

-- The state of a stack after each version. The row of a running update exists from its start: first with the object
-- of the version before, then with that of the last checkpoint. object is the key of the object, or empty for the
-- state without resources; sha256 is the hash of its content before compression, and bytes its size.
CREATE TABLE states (
	stack     VARCHAR(36) NOT NULL REFERENCES stacks (id) ON DELETE CASCADE,
	version   BIGINT NOT NULL,
	object    VARCHAR(200) NOT NULL,
	sha256    BINARY(32) NOT NULL,
	bytes     BIGINT NOT NULL,
	PRIMARY KEY (stack, version)
);
CREATE INDEX states_by_object ON states (object);

-- Requests with entries of the journal of a running update, gzipped, in the order of batch. A repeated request may be
-- stored twice: its entries have the same sequence IDs. The rows are deleted when the update has ended, because its
-- state then has an object of its own.
CREATE TABLE journal (
	update_id VARCHAR(36) NOT NULL REFERENCES updates (id) ON DELETE CASCADE,
	batch     BIGINT NOT NULL,
	entries   MEDIUMBLOB NOT NULL,
	PRIMARY KEY (update_id, batch)
);

-- Engine events, gzipped JSON arrays in the order of their sequence. first and last are the first and the last sequence
-- of a batch. Batches may come twice and in any order; hash identifies a repeated one.
CREATE TABLE event_batches (
	update_id VARCHAR(36) NOT NULL REFERENCES updates (id) ON DELETE CASCADE,
	last      BIGINT NOT NULL,
	hash      BINARY(32) NOT NULL,
	first     BIGINT NOT NULL,
	received  BIGINT NOT NULL,
	events    MEDIUMBLOB NOT NULL,
	PRIMARY KEY (update_id, last, hash)
);
