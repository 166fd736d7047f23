package server

import (
	"strings"
	"time"
)

// The responses of this file have forms that agents of Pulumi were observed to accept. These
// agents get no leased work (scans, policy evaluations), because the form of Pulumi's leases
// is not known: see acquireLease.

func (s *Server) workerToken(c *call) (reply, error) {
	token := poolToken.mint() // not stored, so no call accepts it
	return reply{body: map[string]any{"token": token.Reveal(), "expiration": c.now.Add(time.Hour).UTC()}}, nil
}

func (s *Server) workerConfiguration(c *call) (reply, error) {
	_, err := c.text(maxBody)
	return reply{body: []empty{}}, err
}

// acknowledge changes nothing, because only the poll claims jobs.
func (s *Server) acknowledge(c *call) (reply, error) {
	_, err := c.text(maxBody)
	return reply{body: empty{}}, err
}

// checkView is the status of a deployment as its agent gets it.
type checkView struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Complete bool   `json:"complete"`
}

// check returns the status of a subject of the form "deployment:ID".
func (s *Server) check(c *call) (reply, error) {
	if _, err := c.text(maxBody); err != nil {
		return reply{}, err
	}
	workflow, id, _ := strings.Cut(c.PathValue("subject"), ":")
	if workflow != "deployment" {
		return reply{}, notFound("this service runs deployments and no %q", workflow)
	}
	status, err := s.statusFor(c, id)
	return reply{body: checkView{id, status, status == succeeded || status == failed || status == skipped}}, err
}
