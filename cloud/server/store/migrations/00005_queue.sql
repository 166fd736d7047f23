-- The queue of an organization.
-- +goose Up

-- agent is the agent that claimed the deployment, such as "host (pid 42)"; empty before the claim.
ALTER TABLE deployments ADD COLUMN agent VARCHAR(500) NOT NULL DEFAULT '';
CREATE INDEX deployments_of_organization ON deployments (organization, seq);
CREATE INDEX deployments_by_count ON deployments (organization, status);

-- 1 if no deployment of the organization, or of the stack, is handed out.
ALTER TABLE organizations ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stacks ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
