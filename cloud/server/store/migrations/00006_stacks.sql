-- Stacks that the job of a deployment has removed.
-- +goose Up

-- removal is the time from which the stack is deleted when no deployment of it waits or runs; 0 keeps the stack.
ALTER TABLE stacks ADD COLUMN removal BIGINT NOT NULL DEFAULT 0;
CREATE INDEX stacks_by_removal ON stacks (removal);
