package server

import (
	"strings"
	"time"
)

// Leased work (scans, policy evaluations) is not what this service does. Agents
// ask for it all the same, and are told that there is none in the forms that
// were observed to content them.

func (s *Server) workerToken(c *call) (reply, error) {
	token := poolToken.mint() // good for nothing: no call of this service takes it
	return reply{body: map[string]any{"token": token.Reveal(), "expiration": c.now.Add(time.Hour).UTC()}}, nil
}

func (s *Server) workerConfiguration(c *call) (reply, error) {
	_, err := c.text(maxBody)
	return reply{body: []empty{}}, err
}

func (s *Server) acquireLease(c *call) (reply, error) {
	_, err := c.text(maxBody)
	return reply{}, err
}

// acknowledge: a claim needs no more than the poll, so this changes nothing.
func (s *Server) acknowledge(c *call) (reply, error) {
	_, err := c.text(maxBody)
	return reply{body: empty{}}, err
}

// checkView tells an agent whether its job is still wanted.
type checkView struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Complete bool   `json:"complete"`
}

// check answers for a subject of the form "deployment:ID".
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
