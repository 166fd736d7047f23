package server

import (
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// deploymentView is a deployment in the JSON form that Pulumi's clients read (GetDeployment
// in the public apitype module).
type deploymentView struct {
	ID        string    `json:"id"`
	Version   int64     `json:"version"`
	Created   string    `json:"created"`
	Modified  string    `json:"modified"`
	Status    string    `json:"status"`
	Outcome   string    `json:"cmwaStatus"` // status, or cancelled; not in Pulumi's API
	Operation string    `json:"pulumiOperation"`
	Project   string    `json:"projectName"`
	Stack     string    `json:"stackName"`
	Requester userView  `json:"requestedBy"`
	Initiator string    `json:"initiator"`
	Inherits  bool      `json:"inheritSettings"`
	Pool      *poolName `json:"agentPool,omitempty"`
	Jobs      []jobView `json:"jobs"`
	Updates   []empty   `json:"updates"`
	seq       int64     // key of the row
	pool      string    // id of the pool
	claimed   int64     // time of the claim, as store.ToNanos returns it; 0 before the claim
	modified  int64     // time of the last change, as store.ToNanos returns it
	ended     string    // reason of the end; empty before the end
}

type poolName struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type jobView struct {
	Status      string     `json:"status"`
	Started     time.Time  `json:"started"` // time of the claim; zero before the claim
	LastUpdated time.Time  `json:"lastUpdated"`
	Steps       []stepView `json:"steps"`
}

type stepView struct {
	Name        string    `json:"name"`
	Status      string    `json:"status"`
	Outcome     string    `json:"cmwaStatus"` // status, or cancelled; not in Pulumi's API
	Started     time.Time `json:"started"`
	LastUpdated time.Time `json:"lastUpdated"`
}

// viewDeployments returns the deployments that an SQL condition selects.
func viewDeployments(t *store.Tx, condition string, args ...any) ([]deploymentView, error) {
	all, err := store.Rows(t, func(scan func(...any) error) (v deploymentView, err error) {
		var created int64
		var requester string
		var pool *string
		err = scan(&v.seq, &v.ID, &v.Version, &created, &v.modified, &v.claimed, &v.Status, &v.ended, &v.Operation,
			&v.Project, &v.Stack, &requester, &v.Initiator, &v.Inherits, &v.pool, &pool)
		v.Created, v.Modified = store.FromNanos(created).Format(time.RFC3339Nano),
			store.FromNanos(v.modified).Format(time.RFC3339Nano)
		v.Outcome = (&jobState{status: v.Status, ended: v.ended}).outcome()
		v.Requester, v.Updates = shortUser(requester), []empty{}
		if pool != nil {
			v.Pool = &poolName{v.pool, *pool}
		}
		return v, err
	}, `SELECT d.seq, d.id, d.version, d.created, d.modified, d.claimed, d.status, d.ended, d.operation,
			s.project, s.name, d.requester, d.initiator, d.inherits, d.pool, p.name
		FROM deployments d JOIN stacks s ON s.id = d.stack LEFT JOIN pools p ON p.id = d.pool WHERE `+condition,
		args...)
	if err != nil {
		return nil, err
	}

	for i := range all {
		steps, err := store.Rows(t, func(scan func(...any) error) (st stepView, err error) {
			var started, modified int64
			err = scan(&st.Name, &st.Status, &started, &modified)
			st.Started, st.LastUpdated = store.FromNanos(started), store.FromNanos(modified)
			if st.Outcome = st.Status; st.Status == failed && all[i].ended == endedByCancel {
				st.Outcome = cancelled
			}
			return st, err
		}, `SELECT name, status, started, modified FROM steps WHERE deployment = ? ORDER BY number`, all[i].seq)
		if err != nil {
			return nil, err
		}
		all[i].Jobs = []jobView{{all[i].Status, store.FromNanos(all[i].claimed), store.FromNanos(all[i].modified), steps}}
	}
	return all, nil
}

// definition returns the definition of a job that has not ended, for its runner. The
// definition contains secrets. Each call for a deployment makes a new token for the
// programs of the job. Leased jobs get no such token.
func (s *Server) definition(c *call) (reply, error) {
	token := stackToken.mint()
	var definition cloud.Definition
	var j *job
	err := s.db.Write(c.Context(), func(t *store.Tx) (err error) {
		if j, err = jobFromPath(t, c); err != nil {
			return err
		}
		if err := j.checkReport(0); err != nil {
			return err
		}
		if j.ended != "" {
			return conflict("the job has already ended: %s", j.status)
		}

		if j.leased() {
			definition, err = s.leasedDefinition(t, c, j)
			return err
		}
		if definition, _, _, err = s.openDefinition(c.Context(), t, j.id); err != nil {
			return err
		}
		addEnvironment(&definition, s.base(c), token)
		return saveToken(t, token, principal{stackToken, j.id})
	})
	if err != nil {
		return reply{}, err
	}
	s.recordHeartbeat(c, j)
	return reply{body: definition}, nil
}

// base returns the URL of the service: the public URL, or without it the URL to which the
// call was sent.
func (s *Server) base(c *call) string {
	if s.options.PublicURL != "" {
		return s.options.PublicURL
	}
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + c.Host
}

// buildPath returns the path of a deployment below the URL of the service. It is a path
// of the API, because the service has no console.
func buildPath(stack string, version int) string {
	return "/api/stacks/" + stack + "/deployments/version/" + strconv.Itoa(version)
}
