package server

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
)

// deploymentView is a deployment as Pulumi's clients read one (GetDeployment in
// the public apitype module).
type deploymentView struct {
	ID        string    `json:"id"`
	Version   int64     `json:"version"`
	Created   string    `json:"created"`
	Modified  string    `json:"modified"`
	Status    string    `json:"status"`
	Operation string    `json:"pulumiOperation"`
	Project   string    `json:"projectName"`
	Stack     string    `json:"stackName"`
	Requester userView  `json:"requestedBy"`
	Initiator string    `json:"initiator"`
	Inherits  bool      `json:"inheritSettings"`
	Pool      *poolName `json:"agentPool,omitempty"`
	Jobs      []jobView `json:"jobs"`
	Updates   []empty   `json:"updates"`
	seq       int64     // for its steps
	pool      string    //
	claimed   int64     //
	modified  int64     //
}

type poolName struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type jobView struct {
	Status      string     `json:"status"`
	Started     time.Time  `json:"started"` // zero: not yet
	LastUpdated time.Time  `json:"lastUpdated"`
	Steps       []stepView `json:"steps"`
}

type stepView struct {
	Name        string    `json:"name"`
	Status      string    `json:"status"`
	Started     time.Time `json:"started"`
	LastUpdated time.Time `json:"lastUpdated"`
}

// viewDeployments shows the deployments that a condition selects.
func viewDeployments(t *tx, condition string, args ...any) ([]deploymentView, error) {
	all, err := rows(t, func(scan func(...any) error) (v deploymentView, err error) {
		var created int64
		var requester string
		var pool *string
		err = scan(&v.seq, &v.ID, &v.Version, &created, &v.modified, &v.claimed, &v.Status, &v.Operation, &v.Project, &v.Stack, &requester, &v.Initiator, &v.Inherits, &v.pool, &pool)
		v.Created, v.Modified = unstamp(created).Format(time.RFC3339Nano), unstamp(v.modified).Format(time.RFC3339Nano)
		v.Requester, v.Updates = person(requester), []empty{}
		if pool != nil {
			v.Pool = &poolName{v.pool, *pool}
		}
		return v, err
	}, `SELECT d.seq, d.id, d.version, d.created, d.modified, d.claimed, d.status, d.operation, s.project, s.name, d.requester, d.initiator, d.inherits, d.pool, p.name
		FROM deployments d JOIN stacks s ON s.id = d.stack LEFT JOIN pools p ON p.id = d.pool WHERE `+condition, args...)
	if err != nil {
		return nil, err
	}
	for i := range all {
		steps, err := rows(t, func(scan func(...any) error) (st stepView, err error) {
			var started, modified int64
			err = scan(&st.Name, &st.Status, &started, &modified)
			st.Started, st.LastUpdated = unstamp(started), unstamp(modified)
			return st, err
		}, `SELECT name, status, started, modified FROM steps WHERE deployment = ? ORDER BY number`, all[i].seq)
		if err != nil {
			return nil, err
		}
		all[i].Jobs = []jobView{{all[i].Status, unstamp(all[i].claimed), unstamp(all[i].modified), steps}}
	}
	return all, nil
}

// definition gives a runner its job, while that is not over: it holds secrets.
// Each time, the programs of the job get a token anew.
func (s *Server) definition(c *call) (reply, error) {
	token := stackToken.mint()
	var definition cloud.Definition
	var j *job
	err := s.store.write(c.Context(), func(t *tx) (err error) {
		if j, err = jobOf(t, c); err != nil {
			return err
		}
		if err := j.mayReport(0); err != nil {
			return err
		}
		if j.ended != "" {
			return conflict("the job has %s already", j.status)
		}
		var sealed, wrapped []byte
		var st stack
		var version int
		_, err = t.get([]any{&sealed, &version, &st.id, &st.organization, &st.project, &st.name, &wrapped},
			`SELECT d.definition, d.version, s.id, s.organization, s.project, s.name, s.secret_key FROM deployments d JOIN stacks s ON s.id = d.stack WHERE d.seq = ?`, j.seq)
		if err != nil {
			return err
		}
		if st.key, err = s.stackKey(st.id, wrapped); err != nil {
			return err
		}
		text, err := st.key.open(sealed, forDefinition)
		if err != nil {
			return fmt.Errorf("open a definition: %w", err)
		}
		if err := json.Unmarshal(text, &definition); err != nil {
			return fmt.Errorf("read a definition: %w", err)
		}
		environment(&definition, s.base(c), token, buildPath(st.path(), version))
		return saveToken(t, token, principal{stackToken, j.id})
	})
	if err != nil {
		return reply{}, err
	}
	s.touched(c, j)
	return reply{body: definition}, nil
}

// base is the service's URL: the one that was set, or the one by which the
// caller came.
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

// buildPath is where a deployment is found, below the service's URL. There is
// no console: it is the API's own address.
func buildPath(stack string, version int) string {
	return "/api/stacks/" + stack + "/deployments/version/" + strconv.Itoa(version)
}
