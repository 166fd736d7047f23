package server

import (
	"strings"
	"time"
)

// poolView is a pool in a list; times are Unix seconds.
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

// poolText is what people write about a pool.
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

// online is how long after its last call an agent counts as online: twice the
// longest default between two polls, and some.
const online = 3 * time.Minute

func status(seen int64, now time.Time) string {
	if now.Sub(unstamp(seen)) < online {
		return "online"
	}
	return "offline"
}

func seconds(n int64) int64 { return n / int64(time.Second) }

func (s *Server) createPool(c *call) (reply, error) {
	var body poolText
	if err := c.decode(maxBody, &body); err != nil {
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
	err := s.store.write(c.Context(), func(t *tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		made, err := t.exec(`INSERT INTO pools (id, organization, name, description, created) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			id, organization, *body.Name, *body.Description, stamp(c.now))
		if err != nil {
			return err
		}
		if made == 0 {
			return conflict("there is a pool %q already", *body.Name)
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
	err := s.store.read(c.Context(), func(t *tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		if _, err := t.get([]any{&answer.Default}, `SELECT default_pool FROM organizations WHERE name = ?`, organization); err != nil {
			return err
		}
		answer.Pools, err = rows(t, func(scan func(...any) error) (p poolView, err error) {
			var created, seen int64
			err = scan(&p.ID, &p.Name, &p.Description, &created, &seen)
			p.Created, p.LastSeen, p.Status, p.IsDefault = seconds(created), seconds(seen), status(seen, c.now), p.ID == answer.Default
			return p, err
		}, `SELECT id, name, description, created, seen FROM pools WHERE organization = ? ORDER BY created, id`, organization)
		return err
	})
	return reply{body: answer}, err
}

func (s *Server) getPool(c *call) (reply, error) {
	var view poolDetail
	err := s.store.read(c.Context(), func(t *tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		var created int64
		found, err := t.get([]any{&view.ID, &view.Name, &view.Description, &created},
			`SELECT id, name, description, created FROM pools WHERE organization = ? AND id = ?`, organization, c.PathValue("pool"))
		if err != nil {
			return err
		}
		if !found {
			return noPool(c.PathValue("pool"))
		}
		view.Created = seconds(created)
		view.Agents, err = agentsOf(t, view.ID, c.now)
		return err
	})
	return reply{body: view}, err
}

func noPool(id string) error { return notFound("there is no agent pool %q", id) }

func (s *Server) editPool(c *call) (reply, error) {
	var body poolText
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	if err := body.check(); err != nil {
		return reply{}, err
	}
	id := c.PathValue("pool")
	var name, description string
	err := s.store.write(c.Context(), func(t *tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		found, err := t.get([]any{&name, &description}, `SELECT name, description FROM pools WHERE organization = ? AND id = ?`, organization, id)
		if err != nil {
			return err
		}
		if !found {
			return noPool(id)
		}
		if body.Name != nil {
			name = *body.Name
		}
		if body.Description != nil {
			description = *body.Description
		}
		changed, err := t.exec(`UPDATE OR IGNORE pools SET name = ?, description = ? WHERE id = ?`, name, description, id)
		if err == nil && changed == 0 {
			return conflict("there is a pool %q already", name)
		}
		return err
	})
	return reply{body: map[string]string{"name": name, "description": description}}, err
}

// deletePool shuts the pool's agents out. What they run goes on: its runners
// have tokens of their own. What waits for the pool is skipped.
func (s *Server) deletePool(c *call) (reply, error) {
	id := c.PathValue("pool")
	return reply{}, s.store.write(c.Context(), func(t *tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		found, err := t.get([]any{new(int)}, `SELECT 1 FROM pools WHERE id = ? AND organization = ?`, id, organization)
		if err != nil {
			return err
		}
		if !found {
			return noPool(id)
		}
		if c.URL.Query().Get("force") != "true" {
			var users int
			if _, err := t.get([]any{&users}, `SELECT count(*) FROM stacks WHERE pool = ? AND organization = ?`, id, organization); err != nil {
				return err
			}
			if users > 0 {
				return badRequest("the settings of %d stacks name this pool: change them, or send force=true", users)
			}
		}
		if _, err := t.exec(`DELETE FROM pools WHERE id = ?`, id); err != nil {
			return err
		}
		if err := dropTokens(t, principal{poolToken, id}); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE organizations SET default_pool = '' WHERE default_pool = ?`, id); err != nil {
			return err
		}
		_, err = t.exec(`UPDATE deployments SET status = 'skipped', ended = 'cancel', modified = ? WHERE pool = ? AND status = 'not-started'`, stamp(c.now), id)
		return err
	})
}

// knownPool checks the id of a pool that a person names; empty is none.
func knownPool(t *tx, organization, id string) error {
	if id == "" {
		return nil
	}
	found, err := t.get([]any{new(int)}, `SELECT 1 FROM pools WHERE id = ? AND organization = ?`, id, organization)
	if err == nil && !found {
		return badRequest("there is no agent pool %q: agentPoolID must be the id of one", id)
	}
	return err
}
