-- Statements of jobs that also MySQL takes: it reserves the words LINES and STORED, and it has no partial indexes.
-- +goose Up
ALTER TABLE steps RENAME COLUMN lines TO line_count;
ALTER TABLE steps RENAME COLUMN stored TO stored_bytes;
ALTER TABLE lease_steps RENAME COLUMN lines TO line_count;
ALTER TABLE lease_steps RENAME COLUMN stored TO stored_bytes;
ALTER TABLE batches RENAME COLUMN lines TO packed;
ALTER TABLE lease_batches RENAME COLUMN lines TO packed;
DROP INDEX cuts;
DROP INDEX lease_cuts;
CREATE INDEX batches_by_cut ON batches (deployment, step, cut, start);
CREATE INDEX lease_batches_by_cut ON lease_batches (lease, step, cut, start);

-- running_stack is the stack while the deployment is claimed or running, and otherwise NULL. With it the database
-- refuses a second claim for a stack.
ALTER TABLE deployments ADD COLUMN running_stack VARCHAR(36);
UPDATE deployments SET running_stack = stack WHERE status IN ('accepted', 'running');
CREATE UNIQUE INDEX running ON deployments (running_stack);
DROP INDEX active;
DROP INDEX queue;
CREATE INDEX deployments_by_status ON deployments (status, organization, pool, seq);
DROP INDEX deployments_by_end;
CREATE INDEX deployments_by_time ON deployments (modified);

CREATE INDEX activities_by_status ON activities (status, modified);
CREATE INDEX agents_by_time ON agents (seen);
DROP INDEX stacks_by_pool;
CREATE INDEX stacks_of_pool ON stacks (pool);

-- The tokens of a job expire a day after its end.
UPDATE tokens SET expires = 86400000000000 + (SELECT modified FROM deployments d WHERE d.id = tokens.subject)
	WHERE kind = 'job' AND subject IN (SELECT id FROM deployments WHERE ended <> '');
UPDATE tokens SET expires = 86400000000000 + (SELECT modified FROM leases l WHERE l.id = tokens.subject)
	WHERE kind IN ('job', 'lease') AND subject IN (SELECT id FROM leases WHERE ended <> '');
DROP INDEX tokens_by_end;
CREATE INDEX tokens_by_expiry ON tokens (expires);
