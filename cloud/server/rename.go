package server

import (
	"errors"

	"github.com/cmwa-project/cmwa/cloud/server/state"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// renameStack gives a stack another name, another project, or both. The state of the newest version
// is rewritten, because it contains the names: the next update would replace all resources of a state
// with other names. The history and the key of the stack stay.
func (s *Server) renameStack(c *call) (reply, error) {
	var body struct {
		Name    string `json:"newName"`
		Project string `json:"newProject"`
	}
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	var st stack
	err := s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		st, err = s.renamable(t, c)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	to := state.Name{Project: body.Project, Stack: body.Name}
	if to.Project == "" {
		to.Project = st.Project
	}
	if to.Stack == "" {
		to.Stack = st.Name
	}
	if err := checkNames(to.Project, to.Stack); err != nil {
		return reply{}, err
	}

	// Write the state with the new names, which no row refers to yet.
	var renamed store.State
	if st.Version > 0 {
		d, _, err := s.readVersion(c.Context(), st.ID, st.Version)
		if err != nil {
			return reply{}, err
		}
		d = state.Rename(d, state.Name{Project: st.Project, Stack: st.Name}, to)
		renamed, err = s.saveState(c.Context(), store.Update{ID: "rename", Stack: st.ID, Version: st.Version}, d)
		if err != nil {
			return reply{}, err
		}
	}

	var unused string
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		now, err := s.renamable(t, c)
		if err != nil {
			return err
		}
		if now.ID != st.ID || now.Version != st.Version {
			return conflict("the stack has changed meanwhile: try again")
		}
		err = t.RenameStack(st.ID, to.Project, to.Stack)
		if errors.Is(err, store.ErrDuplicate) {
			return conflict("there is a stack %s/%s/%s already", st.Organization, to.Project, to.Stack)
		}
		if err != nil {
			return err
		}
		if err := renameTag(t, st.ID, to.Project); err != nil || st.Version == 0 {
			return err
		}
		unused, err = moveState(t, renamed)
		return err
	})
	if err == nil {
		s.deleteObject(c.Context(), unused)
	}
	return reply{}, err
}

// renamable returns the stack that a path names. It refuses the stack during an update, and while a
// deployment waits or runs: the commands of its job contain the old name.
func (s *Server) renamable(t *store.Tx, c *call) (stack, error) {
	st, err := s.stackFromPath(t, c)
	if err != nil {
		return st, err
	}
	open, err := t.HasOpenDeployment(st.ID)
	if err != nil {
		return st, err
	}
	if open {
		return st, conflict("a deployment of the stack waits or runs: cancel it, or wait for its end")
	}
	return st, idle(t, st.ID)
}

// renameTag changes the tag in which the CLI stores the name of the project.
func renameTag(t *store.Tx, stack, project string) error {
	const name = "pulumi:project"
	tags, err := t.StackTags(stack)
	if err != nil || tags[name] == "" {
		return err
	}
	tags[name] = project
	return t.SetStackTags(stack, tags)
}
