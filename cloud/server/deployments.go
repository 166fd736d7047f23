package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
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
		if o.version, err = t.NextDeployment(st.ID); err != nil {
			return err
		}
		version = o.version
		definition, err := compile(o)
		if err != nil {
			return err
		}
		if o.settings.Operation.Options.SkipIntermediate {
			if err := t.SkipQueued(st.ID, o.operation, c.now); err != nil {
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
		"id": id, "version": version, "consoleUrl": s.console(c) + buildPath(st.Path(), version),
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
	chosen, pools, err := t.Routing(organization)
	if err == nil && chosen == "" && pools > 1 {
		return badRequest("there are %d agent pools and none is the default: "+
			"choose one with agentPoolID or in the stack's settings, or set a default", pools)
	}
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
	queued := store.NewDeployment{
		ID: o.id, Job: newID(), Stack: st.ID, Organization: st.Organization, Pool: o.settings.Pool, Version: o.version,
		Operation: o.operation, Inherits: r.Inherit == nil || *r.Inherit, Initiator: initiator,
		Requester: c.caller.subject, Definition: st.key.Seal(text, forDefinition),
	}
	for _, step := range definition.Steps {
		queued.Steps = append(queued.Steps, step.Name)
	}
	return t.Enqueue(queued, c.now)
}

// cancelDeployment ends a queued or running deployment at once. The next status check of
// the agent returns the new status, and the next report of the runner is refused.
func (s *Server) cancelDeployment(c *call) (reply, error) {
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		if j.Ended == endedByCancel {
			return conflict("deployment %d was cancelled at %s", j.Version, j.Modified.Format(time.RFC3339))
		}
		if err := j.stop(endedByCancel); err != nil {
			return err
		}
		return j.save(t, -1, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("deployment cancelled", "component", "deployments", "deployment", c.PathValue("id"))
	return reply{body: empty{}}, nil
}

// deploymentFromPath returns the deployment that a path names.
func (s *Server) deploymentFromPath(t *store.Tx, c *call) (*job, error) {
	st, err := s.stackFromPath(t, c)
	if err != nil {
		return nil, err
	}
	id, hint := c.PathValue("id"), ""
	name := id
	if id == "version" {
		name = c.PathValue("part")
		version, err := parseNumber("the version", name, 1, 1<<40)
		if err != nil {
			return nil, err
		}
		if version <= st.Deployments {
			hint = ": it was deleted" + s.options.Retention.describe()
		}
		if id, _, err = t.DeploymentID(st.ID, version); err != nil {
			return nil, err
		}
	}
	j, found, err := asJob(t.JobOf(store.DeploymentJob, id))
	if err == nil && (!found || j.Stack != st.ID) {
		err = notFound("stack %s has no deployment %s%s", st.Path(), name, hint)
	}
	return j, err
}

// getDeploymentPart serves the logs and updates of a deployment, and the path
// version/N. One pattern serves all three, because net/http refuses to register the
// patterns {id}/logs and version/{n} together.
func (s *Server) getDeploymentPart(c *call) (reply, error) {
	switch part := c.PathValue("part"); {
	case c.PathValue("id") == "version":
		return s.getDeployment(c)
	case part == "updates":
		return s.getUpdatesOfDeployment(c)
	case part != "logs":
		return reply{}, notFound("a deployment has logs and updates, and no %q", part)
	}
	var page logPage
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		page, err = s.readLogs(c, t, j)
		return err
	})
	return reply{body: page}, err
}

func (s *Server) getDeployment(c *call) (reply, error) {
	var view deploymentView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		j, err := s.deploymentFromPath(t, c)
		if err != nil {
			return err
		}
		found, err := t.Deployment(j.Seq)
		if err != nil {
			return err
		}
		view, err = viewDeployment(t, found)
		return err
	})
	return reply{body: view}, err
}

// listDeployments lists a page of a stack's deployments, newest first, or oldest
// first with asc=true.
func (s *Server) listDeployments(c *call) (reply, error) {
	return s.pageDeployments(c, func(t *store.Tx) (list deploymentList, err error) {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return list, err
		}
		total, err := t.CountDeployments(st.ID)
		return deploymentList{st.ID, total, t.Deployments, t.OldestDeployments}, err
	})
}

// deploymentList is the list of the deployments of a stack or an organization: its name or id, the number of the
// deployments, and the queries for a page.
type deploymentList struct {
	of             string
	total          int64
	newest, oldest func(of string, limit, offset int64) ([]store.Deployment, error)
}

// pageDeployments returns a page of a list.
func (s *Server) pageDeployments(c *call, find func(*store.Tx) (deploymentList, error)) (reply, error) {
	query := c.URL.Query()
	page, size, err := parsePage(query, 1)
	if err != nil {
		return reply{}, err
	}
	all := []deploymentView{}
	var list deploymentList
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		if list, err = find(t); err != nil {
			return err
		}
		read := list.newest
		if query.Get("asc") == "true" {
			read = list.oldest
		}
		found, err := read(list.of, size, (page-1)*size)
		if err != nil {
			return err
		}
		for _, d := range found {
			view, err := viewDeployment(t, d)
			if err != nil {
				return err
			}
			all = append(all, view)
		}
		return nil
	})
	return reply{body: map[string]any{"deployments": all, "itemsPerPage": size, "total": list.total}}, err
}
