-- People and their tokens.
-- +goose Up

-- Values of the service itself, by name. "service key": the key of the service, wrapped by the master key.
CREATE TABLE meta (
	name  VARCHAR(40) PRIMARY KEY,
	value VARBINARY(1000) NOT NULL
);
