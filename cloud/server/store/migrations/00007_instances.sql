-- Several instances of the service.
-- +goose Up

-- heartbeat is the time of the last heartbeat of the job; 0 before the claim.
ALTER TABLE deployments ADD COLUMN heartbeat BIGINT NOT NULL DEFAULT 0;

-- A duty is done by one instance, its holder, until expires. since is the time since which instances have done it
-- without a long gap.
CREATE TABLE duties (
	name VARCHAR(50) NOT NULL PRIMARY KEY,
	holder VARCHAR(36) NOT NULL,
	since BIGINT NOT NULL,
	expires BIGINT NOT NULL
);
INSERT INTO duties (name, holder, since, expires) VALUES ('background', '', 0, 0);
