package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// request is a request for a deployment, without its settings.
type request struct {
	Operation string         `json:"operation"`
	Inherit   *bool          `json:"inheritSettings"`
	Steps     []customStep   `json:"cmwaSteps"`
	Timeout   cloud.Duration `json:"cmwaTimeout"`
}

// maxTimeout limits the timeout of a job.
const maxTimeout = 30 * 24 * time.Hour

// readRequest returns the request and the settings in a body. Pulumi's CLI sends null for
// fields that are not set.
func readRequest(text []byte) (request, tree, error) {
	var r request
	sent, err := decodeTree(text)
	if err != nil {
		return r, nil, err
	}
	if err := decode(text, &r); err != nil {
		return r, nil, err
	}
	if time.Duration(r.Timeout) > maxTimeout {
		return r, nil, badRequest("cmwaTimeout must be at most %s", maxTimeout)
	}
	for _, name := range []string{"operation", "inheritSettings", "cmwaSteps", "cmwaTimeout"} {
		delete(sent, name)
	}
	maps.DeleteFunc(sent, func(_ string, value any) bool { return value == nil })
	return r, sent, nil
}

// createDeployment queues a deployment.
func (s *Server) createDeployment(c *call) (reply, error) {
	if err := s.checkSpace(); err != nil {
		return reply{}, err
	}
	text, err := c.text(maxBody)
	if err != nil {
		return reply{}, err
	}
	r, sent, err := readRequest(text)
	if err != nil {
		return reply{}, err
	}

	// Compile the job and put it into the queue, in one transaction.
	id, version := newID(), 0
	var st stack
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		if st, err = s.stackFromPath(t, c); err != nil {
			return err
		}
		o := jobSpec{
			organization: st.Organization, project: st.Project, stack: st.Name,
			id: id, operation: r.Operation, steps: r.Steps, timeout: r.Timeout, defaultImage: s.options.DefaultImage,
		}
		if o.settings, err = effectiveSettings(st, sent, r.Inherit == nil || *r.Inherit); err != nil {
			return err
		}
		if err := checkRouting(t, st.Organization, o.settings.Pool); err != nil {
			return err
		}
		const count = `UPDATE stacks SET deployments = deployments + 1 WHERE id = ? RETURNING deployments`
		if _, err := t.Get([]any{&o.version}, count, st.ID); err != nil {
			return err
		}
		version = o.version
		definition, err := compile(o)
		if err != nil {
			return err
		}
		if o.settings.Operation.Options.SkipIntermediate {
			if err := skipQueued(t, st, o.operation, c.now); err != nil {
				return err
			}
		}
		return enqueue(t, st, o, r, c, definition)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("deployment queued", "component", "deployments",
		"deployment", id, "stack", st.Path(), "version", version)
	return reply{http.StatusAccepted, map[string]any{
		"id": id, "version": version, "consoleUrl": s.base(c) + buildPath(st.Path(), version),
	}}, nil
}

// effectiveSettings returns the settings of a deployment: the settings of the request. If
// inherits is true, it adds those settings of the stack that the request does not override.
func effectiveSettings(st stack, sent tree, inherits bool) (settings, error) {
	have := tree{}
	if inherits {
		var err error
		if have, err = st.settingsTree(); err != nil {
			return settings{}, err
		}
	}
	sealed, err := sealSecrets(sent, st.key)
	if err != nil {
		return settings{}, err
	}
	return checkSettings(merge(have, sealed), st.key)
}

// checkRouting checks that a pool can claim a deployment. A deployment without a pool in its
// settings is for the default pool of the organization, or for its only pool. If the
// organization has no pool, the deployment waits for the first one.
func checkRouting(t *store.Tx, organization, pool string) error {
	if pool != "" {
		return checkPool(t, organization, pool)
	}
	var chosen string
	var pools int
	_, err := t.Get([]any{&chosen, &pools}, `SELECT o.default_pool,
		(SELECT count(*) FROM pools p WHERE p.organization = o.name)
		FROM organizations o WHERE o.name = ?`, organization)
	if err == nil && chosen == "" && pools > 1 {
		return badRequest("there are %d agent pools and none is the default: "+
			"choose one with agentPoolID or in the stack's settings, or set a default", pools)
	}
	return err
}

// skipQueued skips queued deployments of the same stack and operation.
func skipQueued(t *store.Tx, st stack, operation string, now time.Time) error {
	_, err := t.Exec(`UPDATE deployments SET status = 'skipped', ended = 'superseded', modified = ?
		WHERE stack = ? AND operation = ? AND status = 'not-started'`,
		store.ToNanos(now), st.ID, operation)
	return err
}

func enqueue(t *store.Tx, st stack, o jobSpec, r request, c *call, definition cloud.Definition) error {
	text, err := json.Marshal(definition)
	if err != nil {
		return fmt.Errorf("write a definition: %w", err)
	}
	initiator := c.Header.Get("X-Pulumi-Deployment-Initiator")
	if initiator == "" || len(initiator) > 100 {
		initiator = "api"
	}
	var seq int64
	_, err = t.Get([]any{&seq}, `INSERT INTO deployments (id, job, stack, organization, pool, version, operation,
			status, inherits, initiator, requester, created, modified, definition)
		VALUES (?, ?, ?, ?, ?, ?, ?, 'not-started', ?, ?, ?, ?, ?, ?) RETURNING seq`,
		o.id, newID(), st.ID, st.Organization, o.settings.Pool, o.version, o.operation, r.Inherit == nil || *r.Inherit,
		initiator, c.caller.subject, store.ToNanos(c.now), store.ToNanos(c.now), st.key.Seal(text, forDefinition))
	if err != nil {
		return err
	}
	for i, step := range definition.Steps {
		_, err := t.Exec(`INSERT INTO steps (deployment, number, name, status) VALUES (?, ?, ?, 'not-started')`,
			seq, i, step.Name)
		if err != nil {
			return err
		}
	}
	return nil
}

// cancelDeployment ends a queued or running deployment at once. The next status check of
// the agent returns the new status, and the next report of the runner is refused.
func (s *Server) cancelDeployment(c *call) (reply, error) {
	var seq int64
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		if j.ended == endedByCancel {
			return conflict("deployment %d was cancelled at %s", j.version, j.modified.Format(time.RFC3339))
		}
		if err := j.jobState.stop(endedByCancel); err != nil {
			return err
		}
		seq = j.Seq
		return j.save(t, -1, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.heartbeats.forget(seq)
	s.log.Info("deployment cancelled", "component", "deployments", "deployment", c.PathValue("id"))
	return reply{body: empty{}}, nil
}

// deploymentFromPath returns the deployment that a path names.
func (s *Server) deploymentFromPath(t *store.Tx, c *call) (*job, error) {
	st, err := s.stackFromPath(t, c)
	if err != nil {
		return nil, err
	}
	var id string
	query, key := `SELECT id FROM deployments WHERE stack = ? AND id = ?`, any(c.PathValue("id"))
	hint := ""
	if c.PathValue("id") == "version" {
		version, err := parseNumber("the version", c.PathValue("part"), 1, 1<<40)
		if err != nil {
			return nil, err
		}
		query, key = `SELECT id FROM deployments WHERE stack = ? AND version = ?`, version
		if version <= st.Deployments {
			hint = ": it was deleted" + s.options.Retention.describe()
		}
	}

	found, err := t.Get([]any{&id}, query, st.ID, key)
	if err != nil {
		return nil, err
	}
	if found {
		var j *job
		if j, found, err = asJob(t.JobOf(store.DeploymentJob, id)); err != nil || found {
			return j, err
		}
	}
	return nil, notFound("stack %s has no deployment %v%s", st.Path(), key, hint)
}

// getDeploymentPart serves the logs and updates of a deployment, and the path
// version/N. One pattern serves all three, because net/http refuses to register the
// patterns {id}/logs and version/{n} together.
func (s *Server) getDeploymentPart(c *call) (reply, error) {
	part := c.PathValue("part")
	switch {
	case c.PathValue("id") == "version":
		return s.getDeployment(c)
	case !slices.Contains([]string{"logs", "updates"}, part):
		return reply{}, notFound("a deployment has logs and updates, and no %q", part)
	}
	var body any = []empty{} // the response for updates, which this service does not store
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err == nil && part == "logs" {
			body, err = s.readLogs(c, t, j)
		}
		return err
	})
	return reply{body: body}, err
}

func (s *Server) getDeployment(c *call) (reply, error) {
	var view deploymentView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		views, err := viewDeployments(t, `d.seq = ?`, j.Seq)
		if err == nil {
			view = views[0]
		}
		return err
	})
	return reply{body: view}, err
}

// listDeployments lists a page of a stack's deployments, newest first, or oldest
// first with asc=true.
func (s *Server) listDeployments(c *call) (reply, error) {
	query := c.URL.Query()
	page, size := int64(1), int64(10)
	var err error
	if query.Has("page") {
		if page, err = parseNumber("page", query.Get("page"), 1, 1<<31); err != nil {
			return reply{}, err
		}
	}
	if query.Has("pageSize") {
		if size, err = parseNumber("pageSize", query.Get("pageSize"), 1, 100); err != nil {
			return reply{}, err
		}
	}
	order := "DESC"
	if query.Get("asc") == "true" {
		order = "ASC"
	}

	var all []deploymentView
	var total int64
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		if _, err := t.Get([]any{&total}, `SELECT count(*) FROM deployments WHERE stack = ?`, st.ID); err != nil {
			return err
		}
		condition := `d.stack = ? ORDER BY d.seq ` + order + ` LIMIT ? OFFSET ?`
		all, err = viewDeployments(t, condition, st.ID, size, (page-1)*size)
		return err
	})
	return reply{body: map[string]any{"deployments": all, "itemsPerPage": size, "total": total}}, err
}
