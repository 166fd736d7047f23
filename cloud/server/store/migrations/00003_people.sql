-- People and their tokens.
-- +goose Up

-- Values of the service itself, by name. "service key": the key of the service, wrapped by the master key.
CREATE TABLE meta (
	name  VARCHAR(40) PRIMARY KEY,
	value VARBINARY(1000) NOT NULL
);

-- Tokens that people make: kind is user, administrator or member, and subject the name of the user or organization. The
-- row outlives the token, because a name is never used again: hash is NULL after a deletion. name is NULL for tokens
-- of users. last_used is written at most once a minute.
CREATE TABLE access_tokens (
	id          VARCHAR(36) PRIMARY KEY,
	hash        BINARY(32) UNIQUE,
	kind        VARCHAR(20) NOT NULL,
	subject     VARCHAR(100) NOT NULL,
	name        VARCHAR(40),
	description VARCHAR(1000) NOT NULL,
	created     BIGINT NOT NULL,
	created_by  VARCHAR(100) NOT NULL,
	expires     BIGINT NOT NULL DEFAULT 0,
	last_used   BIGINT NOT NULL DEFAULT 0,
	UNIQUE (subject, name)
);
INSERT INTO access_tokens (id, hash, kind, subject, description, created, created_by, expires)
	SELECT lower(hex(randomblob(16))), hash, kind, subject, 'made before the release with a list of tokens',
		unixepoch() * 1000000000, subject, expires
	FROM tokens WHERE kind = 'user';
