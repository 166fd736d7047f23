package server

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// stack is one row of the table stacks.
type stack struct {
	id, organization, project, name string
	created                         int64
	tags                            string // JSON
	key                             keys.Key
	settings                        string // JSON with ciphertexts; empty without settings
	deployments                     int64  // version of the last one
}

// path returns the full name of the stack.
func (st stack) path() string { return st.organization + "/" + st.project + "/" + st.name }

// namePattern returns the pattern of names of projects and stacks. It is Pulumi's pattern,
// except that no name begins with a hyphen, like a flag, or with a dot, like a hidden directory.
func namePattern() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$`)
}

// newID returns a random UUID of version 4.
func newID() string {
	raw := make([]byte, 16)
	rand.Read(raw)
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	text := hex.EncodeToString(raw)
	return fmt.Sprintf("%s-%s-%s-%s-%s", text[:8], text[8:12], text[12:16], text[16:20], text[20:])
}

// stackView is a stack in the form that Pulumi's clients read.
type stackView struct {
	ID           string            `json:"id"`
	Organization string            `json:"orgName"`
	Project      string            `json:"projectName"`
	Name         string            `json:"stackName"`
	ActiveUpdate string            `json:"activeUpdate"`
	Version      int               `json:"version"`
	Tags         map[string]string `json:"tags"`
}

func (s *Server) createStack(c *call) (reply, error) {
	var body struct {
		Name string            `json:"stackName"`
		Tags map[string]string `json:"tags"`
	}
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	form := namePattern()
	if !form.MatchString(body.Name) || !form.MatchString(c.PathValue("project")) {
		return reply{}, badRequest("names of stacks and projects have 1 to 100 letters, digits, underscores, dots " +
			"and hyphens, and begin with a letter, a digit or an underscore")
	}
	if body.Tags == nil {
		body.Tags = map[string]string{}
	}
	tags, err := json.Marshal(body.Tags)
	if err != nil {
		return reply{}, fmt.Errorf("write tags: %w", err)
	}

	id := newID()
	key, err := s.keys.Make(c.Context(), forStack+id)
	if err != nil {
		return reply{}, err
	}
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		organization, err := s.organization(t, c)
		if err != nil {
			return err
		}
		made, err := t.Exec(`INSERT INTO stacks (id, organization, project, name, created, tags, secret_key)
			VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			id, organization, c.PathValue("project"), body.Name, store.ToNanos(c.now), string(tags), key)
		if err == nil && made == 0 {
			return conflict("there is a stack %s/%s/%s already", organization, c.PathValue("project"), body.Name)
		}
		return err
	})
	return reply{body: empty{}}, err
}

// stackFromPath returns the stack that a path names. It refuses the token of a job of another
// stack.
func (s *Server) stackFromPath(t *store.Tx, c *call) (stack, error) {
	st := stack{organization: c.PathValue("org"), project: c.PathValue("project"), name: c.PathValue("stack")}
	var wrapped []byte
	var settings *string
	found, err := t.Get([]any{&st.id, &st.created, &st.tags, &wrapped, &settings, &st.deployments},
		`SELECT id, created, tags, secret_key, settings, deployments FROM stacks
			WHERE organization = ? AND project = ? AND name = ?`,
		st.organization, st.project, st.name)
	if err != nil {
		return st, err
	}
	if !found {
		return st, notFound("there is no stack %s", st.path())
	}
	if c.caller.kind == stackToken {
		own, err := t.Get([]any{new(int)}, `SELECT 1 FROM deployments WHERE id = ? AND stack = ?`, c.caller.subject, st.id)
		if err != nil {
			return st, err
		}
		if !own {
			return st, refuse(http.StatusForbidden, "the token of a job is valid only for the job's stack")
		}
	}
	if settings != nil {
		st.settings = *settings
	}
	st.key, err = s.stackKey(c.Context(), st.id, wrapped)
	return st, err
}

func (s *Server) getStack(c *call) (reply, error) {
	var view stackView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		view = stackView{ID: st.id, Organization: st.organization, Project: st.project, Name: st.name}
		return json.Unmarshal([]byte(st.tags), &view.Tags)
	})
	return reply{body: view}, err
}

// projectExists answers 200 if the project has a stack. A project is made with its first
// stack.
func (s *Server) projectExists(c *call) (reply, error) {
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		found, err := t.Get([]any{new(int)}, `SELECT 1 FROM stacks WHERE organization = ? AND project = ? LIMIT 1`,
			c.PathValue("org"), c.PathValue("project"))
		if err == nil && !found {
			return notFound("there is no project %s/%s", c.PathValue("org"), c.PathValue("project"))
		}
		return err
	})
	return reply{body: empty{}}, err
}

// deleteStack deletes a stack with its history, unless it has a running deployment.
func (s *Server) deleteStack(c *call) (reply, error) {
	return reply{}, s.db.Write(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		busy, err := t.Get([]any{new(int)},
			`SELECT 1 FROM deployments WHERE stack = ? AND status IN ('accepted', 'running') LIMIT 1`, st.id)
		if err != nil {
			return err
		}
		if busy {
			return conflict("a deployment of the stack is running: cancel it, or wait for its end")
		}
		_, err = t.Exec(`DELETE FROM tokens WHERE kind IN ('job', 'stack')
			AND subject IN (SELECT id FROM deployments WHERE stack = ?)`, st.id)
		if err != nil {
			return err
		}
		_, err = t.Exec(`DELETE FROM stacks WHERE id = ?`, st.id)
		return err
	})
}

// stackSummary is a stack in a list.
type stackSummary struct {
	ID           string            `json:"id"`
	Organization string            `json:"orgName"`
	Project      string            `json:"projectName"`
	Name         string            `json:"stackName"`
	Links        map[string]string `json:"links"`
}

func (s *Server) listStacks(c *call) (reply, error) {
	query := c.URL.Query()
	tag, value := query.Get("tagName"), query.Get("tagValue")
	found := []stackSummary{}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		_, err := store.Rows(t, func(scan func(...any) error) (one stackSummary, err error) {
			var tags string
			if err := scan(&one.ID, &one.Organization, &one.Project, &one.Name, &tags); err != nil {
				return one, err
			}
			if has, err := hasTag(tags, tag, value); err != nil || !has {
				return one, err
			}
			one.Links = map[string]string{"self": ""}
			found = append(found, one)
			return one, nil
		}, `SELECT id, organization, project, name, tags FROM stacks
			WHERE (?1 = '' OR organization = ?1) AND (?2 = '' OR project = ?2)
			ORDER BY organization, project, name`, query.Get("organization"), query.Get("project"))
		return err
	})
	return reply{body: map[string]any{"stacks": found}}, err
}

// hasTag reports whether tags contain a name with a value. An empty name matches all
// tags, and an empty value matches all values.
func hasTag(tags, name, value string) (bool, error) {
	if name == "" {
		return true, nil
	}
	var all map[string]string
	if err := json.Unmarshal([]byte(tags), &all); err != nil {
		return false, fmt.Errorf("read tags: %w", err)
	}
	got, found := all[name]
	return found && (value == "" || got == value), nil
}
