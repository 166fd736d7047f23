package server

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// deploymentView is a deployment in the JSON form that Pulumi's clients read (GetDeployment
// in the public apitype module).
type deploymentView struct {
	ID        string          `json:"id"`
	Version   int             `json:"version"`
	Created   string          `json:"created"`
	Modified  string          `json:"modified"`
	Status    string          `json:"status"`
	Outcome   string          `json:"cmwaStatus"` // status, or cancelled; not in Pulumi's API
	Operation string          `json:"pulumiOperation"`
	Project   string          `json:"projectName"`
	Stack     string          `json:"stackName"`
	Requester userView        `json:"requestedBy"`
	Initiator string          `json:"initiator"`
	Inherits  bool            `json:"inheritSettings"`
	Pool      *poolName       `json:"agentPool,omitempty"`
	Agent     string          `json:"cmwaAgent,omitempty"` // that claimed the deployment; not in Pulumi's API
	Jobs      []jobView       `json:"jobs"`
	Updates   []jobUpdateView `json:"updates"`
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

// viewDeployment returns a deployment with its steps.
func viewDeployment(t *store.Tx, d store.Deployment) (deploymentView, error) {
	v := deploymentView{
		ID: d.ID, Version: d.Version, Status: d.Status, Operation: d.Operation, Project: d.Project, Stack: d.Stack,
		Created: d.Created.Format(time.RFC3339Nano), Modified: d.Modified.Format(time.RFC3339Nano),
		Outcome:   outcome(d.Status, d.Ended),
		Requester: shortUser(d.Requester), Initiator: d.Initiator, Inherits: d.Inherits,
		Agent: d.Agent,
	}
	if d.PoolName != "" {
		v.Pool = &poolName{d.Pool, d.PoolName}
	}
	steps, err := t.Steps(store.JobKey{Kind: store.DeploymentJob, Seq: d.Seq})
	if err != nil {
		return v, err
	}
	updates, err := t.DeploymentUpdates(d.ID)
	if err != nil {
		return v, err
	}
	v.Updates = viewJobUpdates(updates)
	v.Jobs = []jobView{{d.Status, d.Claimed, d.Modified, viewSteps(steps, d.Ended)}}
	return v, nil
}

// viewSteps returns the steps of a job. Ended is the reason for the end of the job.
func viewSteps(steps []store.Step, ended string) []stepView {
	all := make([]stepView, 0, len(steps))
	for _, s := range steps {
		v := stepView{Name: s.Name, Status: s.Status, Outcome: s.Status, Started: s.Started, LastUpdated: s.Modified}
		if s.Status == failed && ended == endedByCancel {
			v.Outcome = cancelled
		}
		all = append(all, v)
	}
	return all
}

// definition returns the definition of a job that has not ended, for its runner. The
// definition contains secrets. Each call for a deployment makes a new token for the
// programs of the job. Leased jobs get no such token.
func (s *Server) definition(c *call) (reply, error) {
	token := stackToken.mint()
	var definition cloud.Definition
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		j, err := jobFromPath(t, c)
		if err != nil {
			return err
		}
		if err := j.checkReport(0); err != nil {
			return err
		}
		if j.Ended != "" {
			return conflict("the job has already ended: %s", j.Status)
		}

		if j.leased() {
			definition, err = s.leasedDefinition(t, c, j)
			return err
		}
		if definition, _, _, err = s.openDefinition(c.Context(), t, j.ID); err != nil {
			return err
		}
		addEnvironment(&definition, s.base(c), token)
		if err := heartbeatOf(t, c, j); err != nil {
			return err
		}
		return saveToken(t, token, principal{stackToken, j.ID})
	})
	return reply{body: definition}, err
}

// base returns the URL of the service: the public URL, or without it the URL to which the
// call was sent.
func (s *Server) base(c *call) string {
	if s.options.PublicURL != "" {
		return s.options.PublicURL
	}
	return requestURL(c)
}

// clientURL returns the URL that the client has logged in to: that of the call, except that a proxy which ends TLS
// sends calls of an https URL on as http. Such a proxy must keep the header Host.
func (s *Server) clientURL(c *call) string {
	if public, err := url.Parse(s.options.PublicURL); err == nil && strings.EqualFold(public.Host, c.Host) {
		return s.options.PublicURL
	}
	return requestURL(c)
}

// requestURL returns the URL to which a call was sent, without a path.
func requestURL(c *call) string {
	if c.TLS != nil {
		return "https://" + c.Host
	}
	return "http://" + c.Host
}

// console returns the URL of the web page for links.
func (s *Server) console(c *call) string { return cmp.Or(s.options.ConsoleURL, s.base(c)) }

// buildPath returns the path of the page of a deployment, below the URL of the web page.
func buildPath(stack string, version int) string {
	return "/" + stack + "/deployments/" + strconv.Itoa(version)
}
