package server

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/keys"
	"github.com/cmwa-project/cmwa/cloud/server/state"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// stack is a stack with its decrypted key.
type stack struct {
	store.Stack
	key keys.Key
}

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
	Operation    *operationView    `json:"currentOperation,omitempty"`
	ActiveUpdate string            `json:"activeUpdate"`
	Tags         map[string]string `json:"tags"`
	Version      int64             `json:"version"`
}

// operationView is the running update of a stack.
type operationView struct {
	Kind    string `json:"kind"`
	Author  string `json:"author"`
	Started int64  `json:"started"` // seconds since 1970
}

// checkNames returns an error for an invalid name of a project or a stack.
func checkNames(project, stack string) error {
	if form := namePattern(); form.MatchString(project) && form.MatchString(stack) {
		return nil
	}
	return badRequest("names of stacks and projects have 1 to 100 letters, digits, underscores, dots " +
		"and hyphens, and begin with a letter, a digit or an underscore")
}

// createStack creates a stack. With a state, the stack begins with an import of this state.
func (s *Server) createStack(c *call) (reply, error) {
	var body struct {
		Name   string            `json:"stackName"`
		Tags   map[string]string `json:"tags"`
		Teams  []string          `json:"teams"`
		State  json.RawMessage   `json:"state"`
		Config *struct{}         `json:"config"`
	}
	if err := c.decode(maxStateBody, &body); err != nil {
		return reply{}, err
	}
	if err := checkNames(c.PathValue("project"), body.Name); err != nil {
		return reply{}, err
	}
	if err := checkTags(body.Tags); err != nil {
		return reply{}, err
	}
	switch {
	case len(body.Teams) > 0:
		return reply{}, badRequest("this service has no teams: create the stack without them")
	case body.Config != nil:
		return reply{}, badRequest(noConfig)
	}

	made := store.Stack{ID: newID(), Project: c.PathValue("project"), Name: body.Name, Created: c.now}
	var err error
	if made.Key, err = s.keys.Make(c.Context(), forStack+made.ID); err != nil {
		return reply{}, err
	}
	var first store.Update
	var saved store.State
	if len(body.State) > 0 && string(body.State) != "null" {
		d, err := state.Decode(body.State)
		if err != nil {
			return reply{}, badRequest("%v", err)
		}
		first = importOf(c, d)
		first.Stack, first.Version = made.ID, 1
		if saved, err = s.saveState(c.Context(), first, d); err != nil {
			return reply{}, err
		}
	}
	err = s.db.Write(c.Context(), func(t *store.Tx) (err error) {
		if made.Organization, err = s.organization(t, c); err != nil {
			return err
		}
		err = t.CreateStack(made)
		if errors.Is(err, store.ErrDuplicate) {
			return conflict("there is a stack %s already", made.Path())
		}
		if err != nil {
			return err
		}
		if err := t.SetStackTags(made.ID, body.Tags); err != nil || first.ID == "" {
			return err
		}
		return addImport(t, c, first, saved)
	})
	return reply{body: empty{}}, err
}

// stackFromPath returns the stack that a path names.
func (s *Server) stackFromPath(t *store.Tx, c *call) (stack, error) {
	row, err := findStack(t, c.PathValue("org"), c.PathValue("project"), c.PathValue("stack"))
	if err != nil {
		return stack{}, err
	}
	k, err := s.stackKey(c.Context(), row.ID, row.Key)
	return stack{row, k}, err
}

// findStack returns the stack with a name.
func findStack(t *store.Tx, organization, project, name string) (store.Stack, error) {
	row, found, err := t.Stack(organization, project, name)
	if err == nil && !found {
		err = notFound("there is no stack %s/%s/%s", organization, project, name)
	}
	return row, err
}

// readStack is stackFromPath in a transaction of its own.
func (s *Server) readStack(c *call) (st stack, err error) {
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err = s.stackFromPath(t, c)
		return err
	})
	return st, err
}

func (s *Server) getStack(c *call) (reply, error) {
	var view stackView
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		view = stackView{
			ID: st.ID, Organization: st.Organization, Project: st.Project, Name: st.Name,
			ActiveUpdate: st.Update, Version: st.Version,
		}
		if view.Tags, err = t.StackTags(st.ID); err != nil {
			return err
		}
		running, found, err := t.LockHolder(st.ID)
		if found {
			view.Operation = &operationView{running.Kind, running.Requester, running.Started.Unix()}
		}
		return err
	})
	return reply{body: view}, err
}

// projectExists answers 200 if the project has a stack. A project is made with its first
// stack.
func (s *Server) projectExists(c *call) (reply, error) {
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		found, err := t.ProjectExists(c.PathValue("org"), c.PathValue("project"))
		if err == nil && !found {
			return notFound("there is no project %s/%s", c.PathValue("org"), c.PathValue("project"))
		}
		return err
	})
	return reply{body: empty{}}, err
}

// deleteStack deletes a stack with its history. With force=true it ignores the resources of the
// stack. The objects with its states are deleted later, like all objects without a row. If the job of
// the stack's own deployment makes the call, the stack is deleted after the deployment.
func (s *Server) deleteStack(c *call) (reply, error) {
	return reply{}, s.db.Write(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		if err := idle(t, st.ID); err != nil {
			return err
		}
		if st.Resources > 0 && c.URL.Query().Get("force") != "true" {
			return badRequest("Stack still contains resources.") // the CLI compares this text
		}
		busy, err := t.RunsDeployment(st.ID)
		switch {
		case err != nil:
			return err
		case busy && c.caller.kind == stackToken:
			return t.RemoveStack(st.ID, c.now.Add(removalDelay))
		case busy:
			return conflict("a deployment of the stack is running: cancel it, or wait for its end")
		}
		return t.DeleteStack(st.ID)
	})
}

// removalDelay is the time between the end of a deployment and the deletion of the stack that its job
// has removed. In this time, the CLI reads the end of the deployment's log.
const removalDelay = 5 * time.Minute

// deleteRemovedStacks deletes the stacks whose job has removed them. It waits while a deployment waits or runs,
// and during an update.
func (s *Server) deleteRemovedStacks(ctx context.Context, now time.Time) error {
	var removed []string
	err := s.db.Read(ctx, func(t *store.Tx) (err error) {
		removed, err = t.RemovedStacks(now)
		return err
	})
	for _, id := range removed {
		err = errors.Join(err, s.db.Write(ctx, func(t *store.Tx) error {
			open, err := t.HasOpenDeployment(id)
			if err != nil {
				return err
			}
			if open || idle(t, id) != nil {
				return t.RemoveStack(id, now.Add(removalDelay))
			}
			return t.DeleteStack(id)
		}))
	}
	return err
}

// idle refuses a change of a stack during an update.
func idle(t *store.Tx, stack string) error {
	_, running, err := t.LockHolder(stack)
	if err == nil && running {
		return conflict("an update of the stack is running: wait for its end, or run \"pulumi cancel\"")
	}
	return err
}

// stackSummary is a stack in a list.
type stackSummary struct {
	ID           string            `json:"id"`
	Organization string            `json:"orgName"`
	Project      string            `json:"projectName"`
	Name         string            `json:"stackName"`
	LastUpdate   int64             `json:"lastUpdate,omitempty"` // seconds since 1970
	Resources    *int64            `json:"resourceCount,omitempty"`
	Links        map[string]string `json:"links"`
}

// stackList is one page of stacks.
type stackList struct {
	Stacks []stackSummary `json:"stacks"`
	Next   string         `json:"continuationToken,omitempty"`
}

// stacksPage is the number of stacks in one response.
const stacksPage = 500

// listUserStacks lists stacks in the order of their names. The continuation token is the name of the
// last stack of the page before.
func (s *Server) listUserStacks(c *call) (reply, error) {
	query := c.URL.Query()
	after, ok := readStackToken(query.Get("continuationToken"))
	if !ok {
		return reply{}, badRequest("continuationToken must be that of the page before")
	}
	filter := store.StackFilter{
		Organization: query.Get("organization"), Project: query.Get("project"),
		Tag: query.Get("tagName"), Value: query.Get("tagValue"),
	}
	if filter.Value != "" && filter.Tag == "" {
		return reply{}, badRequest("tagValue needs tagName")
	}
	own := c.caller.organization
	if filter.Organization == "" {
		filter.Organization = own
	}
	if own != "" && filter.Organization != own {
		return reply{body: stackList{Stacks: []stackSummary{}}}, nil
	}
	var found []store.Stack
	err := s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		found, err = t.Stacks(filter, after, stacksPage+1)
		return err
	})
	if err != nil {
		return reply{}, err
	}

	var page stackList
	if len(found) > stacksPage {
		found = found[:stacksPage]
		page.Next = writeStackToken(found[stacksPage-1])
	}
	page.Stacks = make([]stackSummary, 0, len(found))
	for _, st := range found {
		one := stackSummary{
			ID: st.ID, Organization: st.Organization, Project: st.Project, Name: st.Name,
			Links: map[string]string{"self": ""},
		}
		if !st.Updated.IsZero() {
			one.LastUpdate, one.Resources = st.Updated.Unix(), &st.Resources
		}
		page.Stacks = append(page.Stacks, one)
	}
	return reply{body: page}, nil
}

// writeStackToken returns the continuation token of a page that ends with a stack.
func writeStackToken(last store.Stack) string {
	return base64.RawURLEncoding.EncodeToString([]byte(last.Path()))
}

// readStackToken returns the organization, the project and the name of the last stack. An empty
// token is that of the first page.
func readStackToken(token string) (last [3]string, ok bool) {
	if token == "" {
		return last, true
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	names := strings.Split(string(text), "/") // no name contains a slash
	if err != nil || len(names) != len(last) {
		return last, false
	}
	return [3]string(names), true
}
