package server

import (
	"errors"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/schema/printable"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// poolView is a pool in a list. Its times are in Unix seconds.
type poolView struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	Created     int64  `json:"created"`
	LastSeen    int64  `json:"lastSeen"`
	Status      string `json:"status"`
	IsDefault   bool   `json:"isDefault"`
}

// poolDetail is one pool, with its agents.
type poolDetail struct {
	ID          string      `json:"id"`
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Created     int64       `json:"created"`
	Agents      []agentView `json:"agents"`
}

// poolText is the name and the description of a pool, if they are set.
type poolText struct {
	Name        *string `json:"name"`
	Description *string `json:"description"`
}

func (p poolText) check() error {
	switch {
	case p.Name != nil && (strings.TrimSpace(*p.Name) == "" || len(*p.Name) > 100):
		return badRequest("name must have 1 to 100 bytes")
	case p.Description != nil && len(*p.Description) > 1000:
		return badRequest("description must have at most 1000 bytes")
	}
	return nil
}

// onlineLimit is how long an agent counts as online after its last call. It is more
// than twice the default polling interval.
const onlineLimit = 3 * time.Minute

const agentOnline = "online"

func agentStatus(seen, now time.Time) string {
	if now.Sub(seen) < onlineLimit {
		return agentOnline
	}
	return "offline"
}

// seconds returns a time in Unix seconds, and 0 for the zero time.
func seconds(t time.Time) int64 { return store.ToNanos(t) / int64(time.Second) }

func (s *Server) createPool(c *call) (reply, error) {
	var body poolText
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	if body.Name == nil {
		return reply{}, badRequest("name is missing")
	}
	if body.Description == nil {
		body.Description = new(string)
	}
	if err := body.check(); err != nil {
		return reply{}, err
	}

	id, token := newID(), poolToken.mint()
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		err = t.CreatePool(organization, store.Pool{
			ID: id, Name: *body.Name, Description: *body.Description, Created: c.now,
		})
		if errors.Is(err, store.ErrDuplicate) {
			return conflict("there is a pool %q already", *body.Name)
		}
		if err != nil {
			return err
		}
		return saveToken(t, token, principal{poolToken, id})
	})
	return reply{body: map[string]string{"id": id, "tokenValue": token.Reveal()}}, err
}

func (s *Server) listPools(c *call) (reply, error) {
	var answer struct {
		Pools   []poolView `json:"agentPools"`
		Default string     `json:"defaultAgentPoolID,omitempty"`
	}
	answer.Pools = []poolView{}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		if answer.Default, _, err = t.Routing(organization); err != nil {
			return err
		}
		pools, err := t.Pools(organization)
		for _, p := range pools {
			answer.Pools = append(answer.Pools, poolView{
				ID: p.ID, Name: p.Name, Description: p.Description,
				Created: seconds(p.Created), LastSeen: seconds(p.Seen),
				Status: agentStatus(p.Seen, c.now), IsDefault: p.ID == answer.Default,
			})
		}
		return err
	})
	return reply{body: answer}, err
}

func (s *Server) getPool(c *call) (reply, error) {
	var view poolDetail
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		pool, found, err := t.Pool(organization, c.PathValue("pool"))
		if err != nil {
			return err
		}
		if !found {
			return noPool(c.PathValue("pool"))
		}
		view = poolDetail{ID: pool.ID, Name: pool.Name, Description: pool.Description, Created: seconds(pool.Created)}
		view.Agents, err = listAgents(t, view.ID, c.now)
		return err
	})
	return reply{body: view}, err
}

func noPool(id string) error { return notFound("there is no agent pool %q", id) }

func (s *Server) editPool(c *call) (reply, error) {
	var body poolText
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	if err := body.check(); err != nil {
		return reply{}, err
	}

	id := c.PathValue("pool")
	var pool store.Pool
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		var found bool
		if pool, found, err = t.Pool(organization, id); err != nil {
			return err
		}
		if !found {
			return noPool(id)
		}
		if body.Name != nil {
			pool.Name = *body.Name
		}
		if body.Description != nil {
			pool.Description = *body.Description
		}
		err = t.EditPool(id, pool.Name, pool.Description)
		if errors.Is(err, store.ErrDuplicate) {
			return conflict("there is a pool %q already", pool.Name)
		}
		return err
	})
	return reply{body: map[string]string{"name": pool.Name, "description": pool.Description}}, err
}

// deletePool deletes a pool. After that, the calls of its agents are refused. Running jobs
// continue, because runners have other tokens. Queued deployments of the pool are skipped,
// and its leased work is cancelled.
func (s *Server) deletePool(c *call) (reply, error) {
	id := c.PathValue("pool")
	return reply{}, s.db.Write(c.Context(), func(t *store.Tx) error {
		if _, err := s.poolOrganization(t, c, id); err != nil {
			return err
		}

		// Without force, refuse to delete a pool in use.
		if c.URL.Query().Get("force") != "true" {
			users, err := t.PoolStacks(id)
			if err != nil {
				return err
			}
			if users > 0 {
				return badRequest("the settings of %s refer to this pool: change these settings, or send force=true",
					printable.Plural(users, "stack"))
			}
			if users, err = t.PoolJobs(id); err != nil {
				return err
			}
			if users > 0 {
				return badRequest("the pool has running jobs (%d): wait for their end, or send force=true", users)
			}
			agents, err := listAgents(t, id, c.now)
			if err != nil {
				return err
			}
			if len(agents) > 0 && agents[0].Status == agentOnline {
				return badRequest("an agent on %s used the pool less than %s ago: stop the agent, or send force=true",
					agents[0].Hostname, onlineLimit)
			}
		}

		// Delete the pool, its tokens and its queue, and cancel its leased work.
		work, err := t.UnfinishedActivities(id)
		if err != nil {
			return err
		}
		if err := cancelEach(t, work, "its pool was deleted", endedByPool, c.now); err != nil {
			return err
		}
		return t.DeletePool(id, c.now)
	})
}

// poolOrganization returns the organization in a path. If the pool does not belong to it, the
// error is a *problem.
func (s *Server) poolOrganization(t *store.Tx, c *call, pool string) (string, error) {
	organization, err := s.organization(t, c)
	if err != nil {
		return "", err
	}
	_, found, err := t.Pool(organization, pool)
	if err == nil && !found {
		return "", noPool(pool)
	}
	return organization, err
}

// createPoolToken makes another token for a pool. With revokeOthers, all older tokens
// of the pool become invalid, also those of OIDC exchanges.
func (s *Server) createPoolToken(c *call) (reply, error) {
	var body struct {
		Revoke bool `json:"revokeOthers"`
	}
	if err := c.decode(maxSmallBody, &body); err != nil {
		return reply{}, err
	}
	id, token := c.PathValue("pool"), poolToken.mint()
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		if _, err := s.poolOrganization(t, c, id); err != nil {
			return err
		}
		if body.Revoke {
			if err := dropTokens(t, principal{poolToken, id}); err != nil {
				return err
			}
		}
		return saveToken(t, token, principal{poolToken, id})
	})
	return reply{body: map[string]string{"tokenValue": token.Reveal()}}, err
}

// checkPool checks that a pool exists. An empty id is accepted.
func checkPool(t *store.Tx, organization, id string) error {
	if id == "" {
		return nil
	}
	_, found, err := t.Pool(organization, id)
	if err == nil && !found {
		return badRequest("there is no agent pool %q: agentPoolID must be the id of one", id)
	}
	return err
}
