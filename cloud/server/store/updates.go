package store

import "time"

// Update is an update of a stack. Its kind is update, preview, refresh, destroy or import. An import is complete when
// it is stored.
type Update struct {
	ID, Stack, Kind string
	DryRun          bool
	Status          string // not-started, running, succeeded, failed or cancelled
	Version         int64  // of the stack after this update; 0 for a dry run and before the start

	Expires   time.Time // of the lease, or of an update that is not started
	Requester string
	Message   string

	Environment string // JSON object
	Config      string // JSON object
	Changes     string // JSON object: resource changes of the last summary event

	Resources  int64  // in the last checkpoint
	Deployment string // whose job made the update; may be empty
	Journal    int    // version of the journal; 0 for plain checkpoints
	Client     string // version of the client, such as v3.259.0; may be empty

	Created, Started, Ended time.Time // Started and Ended may be zero
}

const selectUpdates = `SELECT id, stack, kind, dry_run, status, COALESCE(version, 0), expires, requester, message,
		environment, config, changes, resources, deployment, journal, client, created, started, ended
	FROM updates `

func scanUpdate(scan func(...any) error) (u Update, err error) {
	var expires, created, started, ended int64
	err = scan(&u.ID, &u.Stack, &u.Kind, &u.DryRun, &u.Status, &u.Version, &expires, &u.Requester, &u.Message,
		&u.Environment, &u.Config, &u.Changes, &u.Resources, &u.Deployment, &u.Journal, &u.Client,
		&created, &started, &ended)
	u.Expires, u.Created = FromNanos(expires), FromNanos(created)
	u.Started, u.Ended = FromNanos(started), FromNanos(ended)
	return u, err
}

// nullVersion returns a version as the database stores it: NULL in place of 0.
func nullVersion(version int64) any {
	if version == 0 {
		return nil
	}
	return version
}

// AddUpdate stores a new update. Its lease is stored by [Tx.StartUpdate].
func (t *Tx) AddUpdate(u Update) error {
	_, err := t.exec(`INSERT INTO updates (id, stack, kind, dry_run, status, version, expires, requester, message,
			environment, config, changes, resources, deployment, journal, client, created, started, ended)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		u.ID, u.Stack, u.Kind, u.DryRun, u.Status, nullVersion(u.Version), ToNanos(u.Expires), u.Requester, u.Message,
		u.Environment, u.Config, u.Changes, u.Resources, u.Deployment, u.Journal, u.Client,
		ToNanos(u.Created), ToNanos(u.Started), ToNanos(u.Ended))
	return err
}

// Update returns the update with an id.
func (t *Tx) Update(id string) (u Update, found bool, err error) {
	return one(t, scanUpdate, selectUpdates+`WHERE id = ?`, id)
}

// LockHolder returns the update that has the lock of a stack.
func (t *Tx) LockHolder(stack string) (u Update, found bool, err error) {
	return one(t, scanUpdate, selectUpdates+`WHERE id IN (SELECT update_id FROM locks WHERE stack = ?)`, stack)
}

// UpdateOfLease returns the id and the stack of the update whose lease has a token with this hash.
func (t *Tx) UpdateOfLease(hash []byte) (id string, of Stack, found bool, err error) {
	found, err = t.get([]any{&id, &of.Organization, &of.Project, &of.Name},
		`SELECT u.id, s.organization, s.project, s.name FROM updates u JOIN stacks s ON s.id = u.stack
			WHERE u.lease = ?`, hash)
	return id, of, found, err
}

// StartUpdate stores that an update runs, with the hash of the token of its lease. For an update that is no dry run it
// takes the lock of the stack. The error is ErrDuplicate if another update has it.
func (t *Tx) StartUpdate(u Update, lease []byte) error {
	_, err := t.exec(`UPDATE updates SET status = ?, version = ?, lease = ?, expires = ?, journal = ?, resources = ?,
		started = ? WHERE id = ?`, u.Status, nullVersion(u.Version), lease, ToNanos(u.Expires), u.Journal, u.Resources,
		ToNanos(u.Started), u.ID)
	if err != nil || u.DryRun {
		return err
	}
	if _, err := t.exec(`INSERT INTO locks (stack, update_id) VALUES (?, ?)`, u.Stack, u.ID); err != nil {
		return err
	}
	_, err = t.exec(`UPDATE stacks SET update_id = ? WHERE id = ?`, u.ID, u.Stack)
	return err
}

// RenewUpdate moves the end of the lease of an update.
func (t *Tx) RenewUpdate(id string, expires time.Time) error {
	_, err := t.exec(`UPDATE updates SET expires = ? WHERE id = ?`, ToNanos(expires), id)
	return err
}

// SetChanges stores the resource changes of an update, as a JSON object.
func (t *Tx) SetChanges(id, changes string) error {
	_, err := t.exec(`UPDATE updates SET changes = ? WHERE id = ?`, changes, id)
	return err
}

// EndUpdate stores the status, the end and the resources of an update. Unless it is a dry run, its version becomes that
// of the stack, and the lock is released. A stack that was to be removed stays.
func (t *Tx) EndUpdate(u Update) error {
	_, err := t.exec(`UPDATE updates SET status = ?, ended = ?, resources = ? WHERE id = ?`,
		u.Status, ToNanos(u.Ended), u.Resources, u.ID)
	if err != nil || u.DryRun {
		return err
	}
	_, err = t.exec(`UPDATE stacks SET version = ?, updated = ?, update_id = ?, update_kind = ?, update_result = ?,
		resources = ?, removal = 0 WHERE id = ?`,
		u.Version, ToNanos(u.Ended), u.ID, u.Kind, u.Status, u.Resources, u.Stack)
	if err != nil {
		return err
	}
	_, err = t.exec(`DELETE FROM locks WHERE stack = ?`, u.Stack)
	return err
}

// DeploymentUpdates returns the updates that the job of a deployment has made, oldest first.
func (t *Tx) DeploymentUpdates(deployment string) ([]Update, error) {
	return rows(t, scanUpdate, selectUpdates+`WHERE deployment = ? ORDER BY created, id`, deployment)
}

// LockedByDeployment reports whether an update of a deployment holds the lock of its stack.
func (t *Tx) LockedByDeployment(deployment string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM updates WHERE deployment = ? AND status = 'running' AND dry_run = 0
		LIMIT 1`, deployment)
}

// LostUpdates returns at most limit running updates whose lease has expired or whose deployment has ended. Those of a
// cancelled deployment are returned if it was cancelled before a time.
func (t *Tx) LostUpdates(now, cancelledBefore time.Time, limit int) ([]Update, error) {
	return rows(t, scanUpdate, selectUpdates+`WHERE status = 'running' AND (expires <= ? OR deployment IN (
			SELECT id FROM deployments WHERE id = updates.deployment AND ended <> ''
				AND (ended <> 'cancel' OR modified <= ?)))
		ORDER BY expires LIMIT ?`, ToNanos(now), ToNanos(cancelledBefore), limit)
}

// DropUnstarted deletes updates that have expired before their start.
func (t *Tx) DropUnstarted(now time.Time) error {
	_, err := t.exec(`DELETE FROM updates WHERE status = 'not-started' AND expires <= ?`, ToNanos(now))
	return err
}

// State refers to the object with the state of a stack after a version.
type State struct {
	Stack   string
	Version int64
	Object  string // key; empty for the state without resources
	Hash    []byte // SHA-256 of the content
	Bytes   int64  // of the content
}

// State returns the state of a stack after a version.
func (t *Tx) State(stack string, version int64) (State, bool, error) {
	s := State{Stack: stack, Version: version}
	found, err := t.get([]any{&s.Object, &s.Hash, &s.Bytes},
		`SELECT object, sha256, bytes FROM states WHERE stack = ? AND version = ?`, stack, version)
	return s, found, err
}

// AddState stores the state of a new version.
func (t *Tx) AddState(s State) error {
	_, err := t.exec(`INSERT INTO states (stack, version, object, sha256, bytes) VALUES (?, ?, ?, ?, ?)`,
		s.Stack, s.Version, s.Object, append([]byte{}, s.Hash...), s.Bytes) // a nil slice would be NULL
	return err
}

// MoveState replaces the state of a version.
func (t *Tx) MoveState(s State) error {
	_, err := t.exec(`UPDATE states SET object = ?, sha256 = ?, bytes = ? WHERE stack = ? AND version = ?`,
		s.Object, s.Hash, s.Bytes, s.Stack, s.Version)
	return err
}

// SetResources stores the number of resources in the state of an update.
func (t *Tx) SetResources(id string, resources int) error {
	_, err := t.exec(`UPDATE updates SET resources = ? WHERE id = ?`, resources, id)
	return err
}

// ObjectUsed reports whether a state refers to an object.
func (t *Tx) ObjectUsed(key string) (bool, error) {
	return t.get([]any{new(int)}, `SELECT 1 FROM states WHERE object = ? LIMIT 1`, key)
}

// JournalLength returns the number of batches in the journal of an update.
func (t *Tx) JournalLength(update string) (length int64, err error) {
	_, err = t.get([]any{&length}, `SELECT COALESCE(MAX(batch), 0) FROM journal WHERE update_id = ?`, update)
	return length, err
}

// AddJournal appends a batch, whose number is the length of the journal plus 1. The error is ErrDuplicate if another
// batch has this number.
func (t *Tx) AddJournal(update string, batch int64, entries []byte) error {
	_, err := t.exec(`INSERT INTO journal (update_id, batch, entries) VALUES (?, ?, ?)`, update, batch, entries)
	return err
}

// Journal returns the batches of the journal of an update that follow the first ones, in their order.
func (t *Tx) Journal(update string, first int64) ([][]byte, error) {
	return rows(t, scanOne[[]byte], `SELECT entries FROM journal WHERE update_id = ? AND batch > ? ORDER BY batch`,
		update, first)
}

// DropJournal deletes the journal of an update.
func (t *Tx) DropJournal(update string) error {
	_, err := t.exec(`DELETE FROM journal WHERE update_id = ?`, update)
	return err
}

// EventBatch is a batch of engine events. First and Last are the sequences of its first and its last event.
type EventBatch struct {
	First, Last int64
	Hash        []byte
	Received    time.Time
	Events      []byte // gzipped JSON array
}

// AddEvents stores a batch of events. The error is ErrDuplicate if it is stored already.
func (t *Tx) AddEvents(update string, b EventBatch) error {
	_, err := t.exec(`INSERT INTO event_batches (update_id, last, hash, first, received, events)
		VALUES (?, ?, ?, ?, ?, ?)`, update, b.Last, b.Hash, b.First, ToNanos(b.Received), b.Events)
	return err
}

// NextEvents returns the first batch of an update with events from a sequence on.
func (t *Tx) NextEvents(update string, from int64) (b EventBatch, found bool, err error) {
	var received int64
	found, err = t.get([]any{&b.First, &b.Last, &received, &b.Events}, `SELECT first, last, received, events
		FROM event_batches WHERE update_id = ? AND last >= ? ORDER BY last LIMIT 1`, update, from)
	b.Received = FromNanos(received)
	return b, found, err
}
