package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Defaults and limits of an activity.
const (
	defaultRetries    = 3
	maxRetries        = 100
	defaultRetryDelay = 10 * time.Second
	maxRetryDelay     = 24 * time.Hour
	maxActivityName   = 100 // bytes
)

// activityRequest is a request for leased work.
type activityRequest struct {
	Kind       string                       `json:"kind"`
	Name       string                       `json:"name"`
	Steps      []customStep                 `json:"steps"`
	Timeout    cloud.Duration               `json:"timeout"`
	Image      *cloud.Image                 `json:"image"`
	Shell      string                       `json:"shell"`
	Env        map[string]cloud.SecretValue `json:"environmentVariables"`
	Retries    *int                         `json:"retries"`
	RetryDelay *cloud.Duration              `json:"retryDelay"`
}

// check validates the kind, the name, the timeout, the retries and their delay.
// compileActivity validates the other fields.
func (r *activityRequest) check() error {
	switch {
	case !slices.Contains(ActivityKinds(), r.Kind):
		return badRequest("kind must be one of %s", strings.Join(ActivityKinds(), ", "))
	case len(r.Name) > maxActivityName:
		return badRequest("name must have at most %d bytes", maxActivityName)
	case time.Duration(r.Timeout) > maxTimeout:
		return badRequest("timeout must be at most %s", maxTimeout)
	case r.retries() < 0 || r.retries() > maxRetries:
		return badRequest("retries must be a number from 0 to %d", maxRetries)
	case r.delay() > maxRetryDelay:
		return badRequest("retryDelay must be at most %s", maxRetryDelay)
	}
	return nil
}

func (r *activityRequest) retries() int {
	if r.Retries == nil {
		return defaultRetries
	}
	return *r.Retries
}

func (r *activityRequest) delay() time.Duration {
	if r.RetryDelay == nil {
		return defaultRetryDelay
	}
	return time.Duration(*r.RetryDelay)
}

// compileActivity returns the definition of the jobs of an activity. An error is a *problem.
func compileActivity(r activityRequest, id, organization, defaultImage string) (cloud.Definition, error) {
	settings := settings{Executor: executorContext{Image: r.Image}}
	settings.Operation.Env, settings.Operation.Options.Shell = r.Env, r.Shell
	for name, value := range r.Env {
		if value.Ciphertext != "" {
			return cloud.Definition{}, badRequest("environmentVariables: %q is a ciphertext: send the value", name)
		}
	}
	if err := checkTexts(map[string]string{"shell": r.Shell}); err != nil {
		return cloud.Definition{}, err
	}
	if r.Steps == nil {
		r.Steps = []customStep{}
	}
	d, err := compile(jobSpec{settings: settings, steps: r.Steps, timeout: r.Timeout, defaultImage: defaultImage})
	if err != nil {
		return d, err
	}
	maps.DeleteFunc(d.Env, func(name string, _ cloud.SecretValue) bool { // remove the variables of deployments
		_, set := r.Env[name]
		return !set
	})
	setVariable(&d, "PULUMI_CI_SYSTEM", "cmwa-cloud")
	setVariable(&d, "PULUMI_CI_ORGANIZATION", organization)
	setVariable(&d, "PULUMI_CI_BUILD_ID", id)
	return d, nil
}

// setVariable sets an environment variable of a definition, unless it is set.
func setVariable(d *cloud.Definition, name, value string) {
	if d.Env == nil {
		d.Env = map[string]cloud.SecretValue{}
	}
	if _, set := d.Env[name]; !set {
		d.Env[name] = cloud.SecretValue{Value: secret.New(value)}
	}
}

// createActivity queues leased work for a pool.
func (s *Server) createActivity(c *call) (reply, error) {
	if err := s.checkSpace(); err != nil {
		return reply{}, err
	}
	var r activityRequest
	if err := c.decode(maxBody, &r); err != nil {
		return reply{}, err
	}
	if err := r.check(); err != nil {
		return reply{}, err
	}

	// Compile the definition of its jobs, and put the activity into the queue.
	id, pool := newID(), c.PathValue("pool")
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		organization, err := s.poolOrganization(t, c, pool)
		if err != nil {
			return err
		}
		definition, err := compileActivity(r, id, organization, s.options.DefaultImage)
		if err != nil {
			return err
		}
		text, err := json.Marshal(definition)
		if err != nil {
			return fmt.Errorf("write a definition: %w", err)
		}
		return t.AddActivity(organization, pool, store.Activity{
			ID: id, Kind: r.Kind, Name: r.Name, Status: activityReady, Retries: r.retries(), Delay: r.delay(),
			Requester: c.caller.subject,
		}, s.key.Seal(text, forActivity+id), c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("activity queued", "component", "leases", "activity", id, "kind", r.Kind, "pool", pool)
	return reply{201, map[string]string{"id": id}}, nil
}

// activityView is an activity as users get it.
type activityView struct {
	ID        string      `json:"id"`
	Kind      string      `json:"kind"`
	Name      string      `json:"name"`
	Status    string      `json:"status"`
	Reason    string      `json:"reason,omitempty"` // of the status
	Retries   int         `json:"retriesLeft"`
	Requester userView    `json:"requestedBy"`
	Created   time.Time   `json:"created"`
	Modified  time.Time   `json:"modified"`
	Leases    []leaseView `json:"leases,omitempty"` // oldest first; empty in a list of activities
}

// leaseView is one lease of an activity, with its job.
type leaseView struct {
	ID       string     `json:"id"`
	Agent    string     `json:"agent"`  // hostname and process id
	Status   string     `json:"status"` // of the job
	Ended    string     `json:"ended,omitempty"`
	Acquired time.Time  `json:"acquired"`
	Modified time.Time  `json:"modified"`
	Steps    []stepView `json:"steps"`
}

// viewActivity returns an activity without its leases.
func viewActivity(a store.Activity) activityView {
	return activityView{
		ID: a.ID, Kind: a.Kind, Name: a.Name, Status: a.Status, Reason: a.Reason, Retries: a.Retries,
		Requester: shortUser(a.Requester), Created: a.Created, Modified: a.Modified,
	}
}

// viewLeases returns the leases of an activity.
func viewLeases(t *store.Tx, activity int64) ([]leaseView, error) {
	leases, err := t.Leases(activity)
	if err != nil {
		return nil, err
	}
	all := make([]leaseView, 0, len(leases))
	for _, l := range leases {
		steps, err := t.Steps(store.JobKey{Kind: store.LeaseJob, Seq: l.Seq})
		if err != nil {
			return nil, err
		}
		all = append(all, leaseView{
			ID: l.ID, Agent: l.Agent, Status: l.Status, Ended: l.Ended, Acquired: l.Acquired, Modified: l.Modified,
			Steps: viewSteps(steps, ""),
		})
	}
	return all, nil
}

// maxActivities limits a list of activities.
const maxActivities = 100

// listActivities lists the last activities of a pool, the newest first.
func (s *Server) listActivities(c *call) (reply, error) {
	all := []activityView{}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		if _, err := s.poolOrganization(t, c, c.PathValue("pool")); err != nil {
			return err
		}
		found, err := t.Activities(c.PathValue("pool"), maxActivities)
		for _, a := range found {
			all = append(all, viewActivity(a))
		}
		return err
	})
	return reply{body: map[string]any{"activities": all}}, err
}

// activityFromPath returns the activity that a path names.
func (s *Server) activityFromPath(t *store.Tx, c *call) (*activity, error) {
	pool, id := c.PathValue("pool"), c.PathValue("id")
	if _, err := s.poolOrganization(t, c, pool); err != nil {
		return nil, err
	}
	a, found, err := t.Activity(pool, id)
	if err == nil && !found {
		err = notFound("the pool has no activity %q", id)
	}
	return &activity{a}, err
}

func (s *Server) getActivity(c *call) (reply, error) {
	var view activityView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		a, err := s.activityFromPath(t, c)
		if err != nil {
			return err
		}
		view = viewActivity(a.Activity)
		view.Leases, err = viewLeases(t, a.Seq)
		return err
	})
	return reply{body: view}, err
}

// getActivityLogs returns a page of the log of the last lease, in the form of the logs of
// deployments.
func (s *Server) getActivityLogs(c *call) (reply, error) {
	page := logPage{Lines: []lineView{}}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		a, err := s.activityFromPath(t, c)
		if err != nil || a.Lease == 0 {
			return err
		}
		j, _, err := asJob(t.JobAt(store.JobKey{Kind: store.LeaseJob, Seq: a.Lease}))
		if err != nil {
			return err
		}
		page, err = s.readLogs(c, t, j)
		return err
	})
	return reply{body: page}, err
}

// cancelActivity cancels an activity at once. After that the service refuses the next
// renewal of the lease by the agent, and the next report of the runner.
func (s *Server) cancelActivity(c *call) (reply, error) {
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		a, err := s.activityFromPath(t, c)
		if err != nil {
			return err
		}
		if err := a.cancel("a user cancelled it"); err != nil {
			return err
		}
		return cancelLease(t, a, endedByCancel, c.now)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("activity cancelled", "component", "leases", "activity", c.PathValue("id"))
	return reply{body: empty{}}, nil
}

// cancelEach cancels activities for a reason, and ends the jobs of their leases.
func cancelEach(t *store.Tx, all []store.Activity, reason, by string, now time.Time) error {
	for _, row := range all {
		a := &activity{row}
		if err := a.cancel(reason); err != nil {
			return err
		}
		if err := cancelLease(t, a, by, now); err != nil {
			return err
		}
	}
	return nil
}

// cancelLease saves a cancelled activity, and ends the job of its lease.
func cancelLease(t *store.Tx, a *activity, by string, now time.Time) error {
	j, found, err := asJob(t.JobAt(store.JobKey{Kind: store.LeaseJob, Seq: a.Lease}))
	if err != nil {
		return err
	}
	if found && j.stop(by) == nil { // stop fails for a job that has ended
		if err := j.save(t, -1, now); err != nil {
			return err
		}
	}
	return t.SetActivity(a.Activity, now)
}
