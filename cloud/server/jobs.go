package server

import (
	"net/http"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// job is a deployment's row as far as its run is concerned, with its steps. A
// deployment has one job.
type job struct {
	jobState
	seq int64
	id  string // of the deployment
	job string
}

// jobBy loads a job by one of its keys: "id" or "job".
func jobBy(t *tx, column, value string) (*job, bool, error) {
	j := new(job)
	query := `SELECT seq, id, job, status, ended FROM deployments WHERE id = ?`
	if column == "job" {
		query = `SELECT seq, id, job, status, ended FROM deployments WHERE job = ?`
	}
	found, err := t.get([]any{&j.seq, &j.id, &j.job, &j.status, &j.ended}, query, value)
	if err != nil || !found {
		return nil, false, err
	}
	j.steps, err = rows(t, func(scan func(...any) error) (s stepState, err error) {
		return s, scan(&s.status, &s.lines)
	}, `SELECT status, lines FROM steps WHERE deployment = ? ORDER BY number`, j.seq)
	return j, true, err
}

// jobOf loads the job in a path, for the holder of its token.
func jobOf(t *tx, c *call) (*job, error) {
	j, found, err := jobBy(t, "job", c.PathValue("job"))
	if err != nil {
		return nil, err
	}
	if !found || j.id != c.who.subject {
		return nil, notFound("the token is not one of job %q", c.PathValue("job"))
	}
	return j, nil
}

// save writes the state of the job and of one step, or of every step when that
// is negative. What has ended lets no program of the job in any more.
func (j *job) save(t *tx, step int, now time.Time) error {
	if _, err := t.exec(`UPDATE deployments SET status = ?, ended = ?, modified = ? WHERE seq = ?`, j.status, j.ended, stamp(now), j.seq); err != nil {
		return err
	}
	for i, s := range j.steps {
		if step >= 0 && i != step {
			continue
		}
		_, err := t.exec(`UPDATE steps SET status = ?1, modified = ?2, started = CASE WHEN started = 0 AND ?1 <> 'not-started' THEN ?2 ELSE started END
			WHERE deployment = ?3 AND number = ?4 AND status <> ?1`, s.status, stamp(now), j.seq, i)
		if err != nil {
			return err
		}
	}
	if j.ended == "" {
		return nil
	}
	return dropTokens(t, principal{stackToken, j.id})
}

// pollView is a claimed job. There is no OIDC token: this service issues none.
type pollView struct {
	JobID          string `json:"jobID"`
	RunID          string `json:"runID"`
	TypeSpecificID string `json:"typeSpecificID"`
	DeploymentID   string `json:"deploymentID"`
	JobToken       string `json:"jobToken"`
	OIDCToken      string `json:"oidcToken"`
}

// poll hands the oldest deployment of the caller's pool out, once and to nobody
// else: the claim is on the disk before the answer is sent, so a lost answer
// loses the job and a crash never doubles it.
func (s *Server) poll(c *call) (reply, error) {
	if c.Method != http.MethodGet { // net/http routes HEAD here too, and its answer could not be read
		return reply{}, refuse(http.StatusMethodNotAllowed, "a poll is a GET")
	}
	if err := s.saw(c); err != nil {
		return reply{}, err
	}
	token := jobToken.mint()
	claimed, seq, err := s.claim(c, token)
	if err != nil || claimed == nil {
		return reply{}, err
	}
	s.beats.heard(seq, c.now)
	s.log.Info("job claimed", "component", "jobs", "pool", c.who.subject, "job", claimed.JobID, "deployment", claimed.DeploymentID)
	return reply{body: claimed}, nil
}

// claim takes the first deployment that waits for the pool and whose stack is
// free. One that names no pool waits for the organisation's default pool, or
// for the only pool if there is but one and no default.
func (s *Server) claim(c *call, token secret.String) (view *pollView, seq int64, err error) {
	err = s.store.write(c.Context(), func(t *tx) error {
		var v pollView
		found, err := t.get([]any{&seq, &v.DeploymentID, &v.JobID}, `
			WITH me AS (
				SELECT p.id, p.organization, o.default_pool = p.id
					OR (o.default_pool = '' AND (SELECT count(*) FROM pools q WHERE q.organization = p.organization) = 1) AS anything
				FROM pools p JOIN organizations o ON o.name = p.organization WHERE p.id = ?1
			)
			UPDATE deployments SET status = 'accepted', claimed = ?2, modified = ?2, pool = ?1 WHERE seq = (
				SELECT d.seq FROM me JOIN deployments d ON d.organization = me.organization AND d.status = 'not-started'
					AND (d.pool = me.id OR (d.pool = '' AND me.anything))
				WHERE NOT EXISTS (SELECT 1 FROM deployments r WHERE r.stack = d.stack AND r.status IN ('accepted', 'running'))
				ORDER BY d.seq LIMIT 1
			) RETURNING seq, id, job`, c.who.subject, stamp(c.now))
		if err != nil {
			return err
		}
		if !found {
			return errNothing
		}
		if err := saveToken(t, token, principal{jobToken, v.DeploymentID}); err != nil {
			return err
		}
		v.RunID, v.TypeSpecificID, v.JobToken = v.DeploymentID, v.DeploymentID, token.Reveal()
		view = &v
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return view, seq, nil
}

// deploymentStatus is a bare JSON string, as documented.
func (s *Server) deploymentStatus(c *call) (reply, error) {
	status, err := s.statusFor(c, c.PathValue("id"))
	return reply{body: status}, err
}

// statusFor is a deployment's status, for agents of its organisation.
func (s *Server) statusFor(c *call, id string) (status string, err error) {
	err = s.store.read(c.Context(), func(t *tx) error {
		found, err := t.get([]any{&status}, `SELECT d.status FROM deployments d JOIN pools p ON p.organization = d.organization WHERE d.id = ? AND p.id = ?`, id, c.who.subject)
		if err == nil && !found {
			return notFound("there is no deployment %q", id)
		}
		return err
	})
	return status, err
}

// heartbeat notes a sign of life. The last one of a job may overtake, or be
// overtaken by, the report that ends it, so after an ordinary end it is fine.
func (s *Server) heartbeat(c *call) (reply, error) {
	if _, err := c.text(maxBody); err != nil {
		return reply{}, err
	}
	var j *job
	err := s.store.read(c.Context(), func(t *tx) (err error) {
		if j, err = jobOf(t, c); err != nil {
			return err
		}
		return j.mayReport(0)
	})
	if err == nil && j.ended == "" {
		s.beats.heard(j.seq, c.now)
	}
	return reply{body: empty{}}, err
}
