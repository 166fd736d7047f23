package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// request is a request for a deployment, but for the settings in it.
type request struct {
	Operation string         `json:"operation"`
	Inherit   *bool          `json:"inheritSettings"`
	Steps     []ownStep      `json:"cmwaSteps"`
	Timeout   cloud.Duration `json:"cmwaTimeout"`
}

// maxTimeout is longer than any job that makes sense.
const maxTimeout = 30 * 24 * time.Hour

// readRequest reads a body: the request, and the settings that it brings. A null
// at the top means that nothing is said, as Pulumi's CLI writes it.
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
	text, err := c.text(maxBody)
	if err != nil {
		return reply{}, err
	}
	r, sent, err := readRequest(text)
	if err != nil {
		return reply{}, err
	}
	id, version := newID(), 0
	var st stack
	err = s.store.write(c.Context(), func(t *tx) error {
		if st, err = s.stackOf(t, c); err != nil {
			return err
		}
		o := order{
			organization: st.organization, project: st.project, stack: st.name,
			id: id, operation: r.Operation, steps: r.Steps, timeout: r.Timeout, defaultImage: s.options.DefaultImage,
		}
		if o.settings, err = effective(st, sent, r.Inherit == nil || *r.Inherit); err != nil {
			return err
		}
		if err := routed(t, st.organization, o.settings.Pool); err != nil {
			return err
		}
		if _, err := t.get([]any{&o.version}, `UPDATE stacks SET deployments = deployments + 1 WHERE id = ? RETURNING deployments`, st.id); err != nil {
			return err
		}
		version = o.version
		definition, err := compile(o)
		if err != nil {
			return err
		}
		if o.settings.Operation.Options.SkipIntermediate {
			if err := skipOlder(t, st, o.operation, c.now); err != nil {
				return err
			}
		}
		return enqueue(t, st, o, r, c, definition)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("deployment queued", "component", "deployments", "deployment", id, "stack", st.path(), "version", version)
	return reply{http.StatusAccepted, map[string]any{"id": id, "version": version, "consoleUrl": s.base(c) + buildPath(st.path(), version)}}, nil
}

// effective are the settings of a deployment: the stack's own, if it inherits
// them, and the request's over them.
func effective(st stack, sent tree, inherits bool) (settings, error) {
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

// routed checks that an agent can come for a deployment. Without a pool of its
// own it is for the default pool, or the only one; if there is no pool at all
// yet, it waits for the first.
func routed(t *tx, organization, pool string) error {
	if pool != "" {
		return knownPool(t, organization, pool)
	}
	var chosen string
	var pools int
	_, err := t.get([]any{&chosen, &pools}, `SELECT o.default_pool, (SELECT count(*) FROM pools p WHERE p.organization = o.name) FROM organizations o WHERE o.name = ?`, organization)
	if err == nil && chosen == "" && pools > 1 {
		return badRequest("there are %d agent pools and none is the default: name one with agentPoolID, in the request or in the stack's settings, or set a default", pools)
	}
	return err
}

// skipOlder takes what waits for the same stack and operation out of the queue.
func skipOlder(t *tx, st stack, operation string, now time.Time) error {
	_, err := t.exec(`UPDATE deployments SET status = 'skipped', ended = 'cancel', modified = ? WHERE stack = ? AND operation = ? AND status = 'not-started'`,
		stamp(now), st.id, operation)
	return err
}

func enqueue(t *tx, st stack, o order, r request, c *call, definition cloud.Definition) error {
	text, err := json.Marshal(definition)
	if err != nil {
		return fmt.Errorf("write a definition: %w", err)
	}
	initiator := c.Header.Get("X-Pulumi-Deployment-Initiator")
	if initiator == "" || len(initiator) > 100 {
		initiator = "api"
	}
	var seq int64
	_, err = t.get([]any{&seq}, `INSERT INTO deployments (id, job, stack, organization, pool, version, operation, status, inherits, initiator, requester, created, modified, definition)
		VALUES (?, ?, ?, ?, ?, ?, ?, 'not-started', ?, ?, ?, ?, ?, ?) RETURNING seq`,
		o.id, newID(), st.id, st.organization, o.settings.Pool, o.version, o.operation, r.Inherit == nil || *r.Inherit,
		initiator, c.who.subject, stamp(c.now), stamp(c.now), st.key.seal(text, forDefinition))
	if err != nil {
		return err
	}
	for i, step := range definition.Steps {
		if _, err := t.exec(`INSERT INTO steps (deployment, number, name, status) VALUES (?, ?, ?, 'not-started')`, seq, i, step.Name); err != nil {
			return err
		}
	}
	return nil
}

// cancelDeployment takes a deployment out of the queue, or ends it at once. The
// agent learns of it when it next asks, the runner with its next report.
func (s *Server) cancelDeployment(c *call) (reply, error) {
	var seq int64
	err := s.store.write(c.Context(), func(t *tx) error {
		j, err := s.deploymentIn(t, c)
		if err != nil {
			return err
		}
		if err := j.jobState.stop(endedByCancel); err != nil {
			return err
		}
		seq = j.seq
		return j.save(t, -1, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.beats.forget(seq)
	s.log.Info("deployment cancelled", "component", "deployments", "deployment", c.PathValue("id"))
	return reply{body: empty{}}, nil
}

// deploymentIn finds the deployment in a path.
func (s *Server) deploymentIn(t *tx, c *call) (*job, error) {
	st, err := s.stackOf(t, c)
	if err != nil {
		return nil, err
	}
	var id string
	query, key := `SELECT id FROM deployments WHERE stack = ? AND id = ?`, any(c.PathValue("id"))
	if c.PathValue("id") == "version" {
		version, err := number("the version", c.PathValue("part"), 1, 1<<40)
		if err != nil {
			return nil, err
		}
		query, key = `SELECT id FROM deployments WHERE stack = ? AND version = ?`, version
	}
	found, err := t.get([]any{&id}, query, st.id, key)
	if err != nil {
		return nil, err
	}
	if found {
		var j *job
		if j, found, err = jobBy(t, "id", id); err != nil || found {
			return j, err
		}
	}
	return nil, notFound("stack %s has no deployment %v", st.path(), key)
}

// getDeploymentPart answers what stands below a deployment, and the form
// version/N, which net/http's patterns cannot tell apart.
func (s *Server) getDeploymentPart(c *call) (reply, error) {
	part := c.PathValue("part")
	switch {
	case c.PathValue("id") == "version":
		return s.getDeployment(c)
	case !slices.Contains([]string{"logs", "updates"}, part):
		return reply{}, notFound("a deployment has logs and updates, and no %q", part)
	}
	var body any = []empty{} // of updates: this service keeps none
	err := s.store.read(c.Context(), func(t *tx) error {
		j, err := s.deploymentIn(t, c)
		if err == nil && part == "logs" {
			body, err = s.readLogs(c, t, j)
		}
		return err
	})
	return reply{body: body}, err
}

func (s *Server) getDeployment(c *call) (reply, error) {
	var view deploymentView
	err := s.store.read(c.Context(), func(t *tx) error {
		j, err := s.deploymentIn(t, c)
		if err != nil {
			return err
		}
		views, err := viewDeployments(t, `d.seq = ?`, j.seq)
		if err == nil {
			view = views[0]
		}
		return err
	})
	return reply{body: view}, err
}

// listDeployments lists a page of a stack's deployments, newest first.
func (s *Server) listDeployments(c *call) (reply, error) {
	query := c.URL.Query()
	page, size := int64(1), int64(10)
	var err error
	if query.Has("page") {
		if page, err = number("page", query.Get("page"), 1, 1<<31); err != nil {
			return reply{}, err
		}
	}
	if query.Has("pageSize") {
		if size, err = number("pageSize", query.Get("pageSize"), 1, 100); err != nil {
			return reply{}, err
		}
	}
	order := "DESC"
	if query.Get("asc") == "true" {
		order = "ASC"
	}
	var all []deploymentView
	var total int64
	err = s.store.read(c.Context(), func(t *tx) error {
		st, err := s.stackOf(t, c)
		if err != nil {
			return err
		}
		if _, err := t.get([]any{&total}, `SELECT count(*) FROM deployments WHERE stack = ?`, st.id); err != nil {
			return err
		}
		all, err = viewDeployments(t, `d.stack = ? ORDER BY d.seq `+order+` LIMIT ? OFFSET ?`, st.id, size, (page-1)*size)
		return err
	})
	return reply{body: map[string]any{"deployments": all, "itemsPerPage": size, "total": total}}, err
}
