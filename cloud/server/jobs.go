package server

import (
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// jobFromPath loads the job that a path names. It refuses a caller with the token of another
// job.
func jobFromPath(t *store.Tx, c *call) (*job, error) {
	j, found, err := asJob(t.Job(store.DeploymentJob, c.PathValue("job")))
	if err == nil && !found {
		j, found, err = loadLeased(t, c.PathValue("job"), c.now)
	}
	if err != nil {
		return nil, err
	}
	if !found || j.ID != c.caller.subject {
		return nil, notFound("the token does not belong to job %q", c.PathValue("job"))
	}
	return j, nil
}

// save writes the state of the job and of one step, or of every step if step is negative. After
// the end of the job, the tokens of its runner and agent stay valid for tokenRetention.
//
// When the job of a deployment has ended, save lets the next deployment of the stack run, and
// deletes the token with which programs in the job, such as pulumi, call this service. If an
// update of the job holds the lock of the stack, the end of the update does both: see stopTime. When the
// job of a lease has succeeded, save completes the activity, which is the scan or the policy
// evaluation of the lease.
func (j *job) save(t *store.Tx, step int, now time.Time) error {
	if err := t.SetJob(j.JobKey, j.Status, j.Ended, now); err != nil {
		return err
	}
	for i, s := range j.Steps {
		if step >= 0 && i != step {
			continue
		}
		if err := t.SetStep(j.JobKey, i, s.Status, now); err != nil {
			return err
		}
	}
	if j.Ended == "" {
		return nil
	}
	if err := t.ExpireJobTokens(j.ID, now.Add(tokenRetention)); err != nil {
		return err
	}
	if j.leased() {
		return completeBySteps(t, j, now)
	}
	locked, err := t.LockedByDeployment(j.ID)
	if err != nil {
		return err
	}
	if locked {
		return t.ExpireTokens(string(stackToken), j.ID, now.Add(stopTime))
	}
	return release(t, j.ID)
}

// release lets the next deployment of the stack run if a deployment has ended, and deletes the token of its programs.
func release(t *store.Tx, deployment string) error {
	ended, err := t.Release(deployment)
	if err != nil || !ended {
		return err
	}
	return dropTokens(t, principal{stackToken, deployment})
}

// pollView is a claimed job.
type pollView struct {
	JobID          string `json:"jobID"`
	RunID          string `json:"runID"`
	TypeSpecificID string `json:"typeSpecificID"`
	DeploymentID   string `json:"deploymentID"`
	JobToken       string `json:"jobToken"`
	OIDCToken      string `json:"oidcToken"`
}

// poll claims a queued deployment for the pool of the caller: see claim. The claim is on
// the disk before the response is sent, so two agents never have the same job. If the response
// is lost, requeue returns the deployment to the queue.
func (s *Server) poll(c *call) (reply, error) {
	if c.Method != http.MethodGet { // net/http routes HEAD here too, and its response has no body for the job
		return reply{}, refuse(http.StatusMethodNotAllowed, "a poll is a GET")
	}
	if err := s.recordAgent(c); err != nil {
		return reply{}, err
	}
	token := jobToken.mint()
	claimed, err := s.claim(c, token)
	if err != nil || claimed == nil {
		return reply{}, err
	}
	identity, err := s.jobOIDCToken(c, claimed.DeploymentID)
	if err != nil { // requeue returns the deployment to the queue
		return reply{}, err
	}
	claimed.OIDCToken = identity.Reveal()
	s.log.Info("job claimed", "component", "jobs",
		"pool", c.caller.subject, "job", claimed.JobID, "deployment", claimed.DeploymentID)
	return reply{body: claimed}, nil
}

// claim claims the oldest queued deployment that is for the pool of the caller: see
// [store.Tx.NextWaiting]. Most polls find none, so claim first only reads.
func (s *Server) claim(c *call, token secret.String) (view *pollView, err error) {
	pool, waits := c.caller.subject, false
	err = s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		_, waits, err = t.NextWaiting(pool)
		return err
	})
	if err != nil || !waits {
		return nil, err
	}
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		w, found, err := t.NextWaiting(pool)
		if err == nil && found {
			found, err = t.Claim(w.Seq, pool, agentName(parseUserAgent(c.UserAgent(), c.RemoteAddr)), c.now)
		}
		if err != nil {
			return err
		}
		if !found {
			return store.ErrNoChange
		}
		view = &pollView{
			JobID: w.Job, RunID: w.ID, TypeSpecificID: w.ID, DeploymentID: w.ID, JobToken: token.Reveal(),
		}
		return saveToken(t, token, principal{jobToken, w.ID})
	})
	if err != nil {
		return nil, err
	}
	return view, nil
}

// deploymentStatus returns the status as a JSON string, as documented.
func (s *Server) deploymentStatus(c *call) (reply, error) {
	status, err := s.statusFor(c, c.PathValue("id"))
	return reply{body: status}, err
}

// statusFor returns the status of a deployment, for agents of its organization.
func (s *Server) statusFor(c *call, id string) (status string, err error) {
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		var found bool
		status, found, err = t.DeploymentStatus(id, c.caller.subject)
		if err == nil && !found {
			return notFound("there is no deployment %q", id)
		}
		return err
	})
	return status, err
}

// heartbeat records a heartbeat of a job. The last heartbeat may arrive after the report that
// ends the job. Therefore a heartbeat is also accepted after a job has ended by its steps.
func (s *Server) heartbeat(c *call) (reply, error) {
	if _, err := c.text(maxBody); err != nil {
		return reply{}, err
	}
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := jobFromPath(t, c)
		if err != nil {
			return err
		}
		if err := j.checkReport(0); err != nil {
			return err
		}
		return heartbeatOf(t, c, j)
	})
	return reply{body: empty{}}, err
}
