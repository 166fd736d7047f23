package store

import (
	"strings"
	"time"
)

// Stack is a row of the table stacks.
type Stack struct {
	ID, Organization, Project, Name string

	Created     time.Time
	Key         []byte // wrapped
	Settings    string // JSON with ciphertexts; empty without settings
	Deployments int64  // version of the last one

	Version   int64     // of the state
	Update    string    // id of the most recent update that is no dry run; may be empty
	Updated   time.Time // of the last completed update; may be zero
	Resources int64     // after the last completed update
	Kind      string    // of that update; may be empty
	Result    string    // of that update; may be empty
}

// Path returns the full name of the stack.
func (s Stack) Path() string { return s.Organization + "/" + s.Project + "/" + s.Name }

// stackColumns are the columns of a [Stack], in the order of its method scan.
const stackColumns = `s.id, s.organization, s.project, s.name, s.created, s.secret_key, s.settings, s.deployments,
	s.version, s.update_id, s.updated, s.resources, s.update_kind, s.update_result`

func scanStack(scan func(...any) error) (s Stack, err error) {
	var created, updated int64
	var settings *string
	err = scan(&s.ID, &s.Organization, &s.Project, &s.Name, &created, &s.Key, &settings, &s.Deployments,
		&s.Version, &s.Update, &updated, &s.Resources, &s.Kind, &s.Result)
	if settings != nil {
		s.Settings = *settings
	}
	s.Created, s.Updated = FromNanos(created), FromNanos(updated)
	return s, err
}

// Stack returns the stack with a name.
func (t *Tx) Stack(organization, project, name string) (s Stack, found bool, err error) {
	return one(t, scanStack, `SELECT `+stackColumns+` FROM stacks s
		WHERE s.organization = ? AND s.project = ? AND s.name = ?`, organization, project, name)
}

// StackFilter selects stacks. An empty field selects all.
type StackFilter struct {
	Organization, Project, Tag, Value string

	Text string // part of the name of the project or of the stack
}

// Stacks returns at most limit stacks in the order of their names, starting after the stack with a name.
func (t *Tx) Stacks(f StackFilter, after [3]string, limit int) ([]Stack, error) {
	like := "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(f.Text) + "%"
	return rows(t, scanStack, `SELECT `+stackColumns+` FROM stacks s
		WHERE (s.organization, s.project, s.name) > (?, ?, ?)
			AND (? = '' OR s.organization = ?) AND (? = '' OR s.project = ?)
			AND (? = '' OR EXISTS (SELECT 1 FROM stack_tags g
				WHERE g.stack = s.id AND g.name = ? AND (? = '' OR g.value = ?)))
			AND (s.project LIKE ? ESCAPE '!' OR s.name LIKE ? ESCAPE '!')
		ORDER BY s.organization, s.project, s.name LIMIT ?`, after[0], after[1], after[2],
		f.Organization, f.Organization, f.Project, f.Project, f.Tag, f.Tag, f.Value, f.Value, like, like, limit)
}

// ProjectExists reports whether a project has a stack.
func (t *Tx) ProjectExists(organization, project string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM stacks WHERE organization = ? AND project = ? LIMIT 1`,
		organization, project)
}

// CreateStack stores a stack without updates. The error is ErrDuplicate if its name exists.
func (t *Tx) CreateStack(s Stack) error {
	_, err := t.exec(`INSERT INTO stacks (id, organization, project, name, created, secret_key)
		VALUES (?, ?, ?, ?, ?, ?)`, s.ID, s.Organization, s.Project, s.Name, ToNanos(s.Created), s.Key)
	return err
}

// RenameStack gives a stack another name. The error is ErrDuplicate if the name exists.
func (t *Tx) RenameStack(id, project, name string) error {
	_, err := t.exec(`UPDATE stacks SET project = ?, name = ? WHERE id = ?`, project, name, id)
	return err
}

// HasOpenDeployment reports whether a deployment of a stack waits or runs.
func (t *Tx) HasOpenDeployment(stack string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM deployments
		WHERE stack = ? AND status IN ('not-started', 'accepted', 'running') LIMIT 1`, stack)
}

// SetSettings changes the settings of a stack, which are JSON or empty, and the pool that they name, which may be
// empty.
func (t *Tx) SetSettings(stack, settings, pool string) error {
	_, err := t.exec(`UPDATE stacks SET settings = NULLIF(?, ''), pool = ? WHERE id = ?`, settings, pool, stack)
	return err
}

// DeleteStack deletes a stack with its history, its deployments and the tokens of their jobs.
func (t *Tx) DeleteStack(id string) error {
	_, err := t.exec(`DELETE FROM tokens WHERE kind IN ('job', 'stack')
		AND subject IN (SELECT id FROM deployments WHERE stack = ?)`, id)
	if err != nil {
		return err
	}
	_, err = t.exec(`DELETE FROM stacks WHERE id = ?`, id)
	return err
}

// RemoveStack has the stack deleted at a time.
func (t *Tx) RemoveStack(id string, at time.Time) error {
	_, err := t.exec(`UPDATE stacks SET removal = ? WHERE id = ?`, ToNanos(at), id)
	return err
}

// RemovedStacks returns the ids of stacks to be deleted at a time.
func (t *Tx) RemovedStacks(now time.Time) ([]string, error) {
	return rows(t, scanOne[string], `SELECT id FROM stacks WHERE removal > 0 AND removal <= ?`, ToNanos(now))
}

// StackTags returns the tags of a stack.
func (t *Tx) StackTags(stack string) (map[string]string, error) {
	tags := map[string]string{}
	_, err := rows(t, func(scan func(...any) error) (name string, err error) {
		var value string
		err = scan(&name, &value)
		tags[name] = value
		return name, err
	}, `SELECT name, value FROM stack_tags WHERE stack = ?`, stack)
	return tags, err
}

// SetStackTags replaces the tags of a stack.
func (t *Tx) SetStackTags(stack string, tags map[string]string) error {
	if _, err := t.exec(`DELETE FROM stack_tags WHERE stack = ?`, stack); err != nil {
		return err
	}
	for name, value := range tags {
		_, err := t.exec(`INSERT INTO stack_tags (stack, name, value) VALUES (?, ?, ?)`, stack, name, value)
		if err != nil {
			return err
		}
	}
	return nil
}
