package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/objects"
	"github.com/cmwa-project/cmwa/cloud/server/state"
	"github.com/cmwa-project/cmwa/cloud/server/store"
)

const (
	journalVersion = 1              // of the journal protocol that this service supports
	readAttempts   = 5              // to read an object that a newer checkpoint replaces at the same time
	orphanAge      = 24 * time.Hour // of objects that are deleted because no row refers to them
	sweepInterval  = time.Hour
	cachedChecks   = 1000           // in memory; one has about 100 bytes for each entry of its journal
	checkpoints    = "checkpoints/" // prefix of the objects with states
)

// readDeployment reads a state from the body of a call: an UntypedDeployment or a checkpoint.
func (c *call) readDeployment() (*state.Deployment, error) {
	text, err := c.text(maxStateBody)
	if err != nil {
		return nil, err
	}
	d, err := state.Decode(text)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return d, nil
}

// saveState writes a state of an update as an object, which no row refers to yet.
func (s *Server) saveState(ctx context.Context, u store.Update, d *state.Deployment) (store.State, error) {
	content := d.Encode()
	prefix := fmt.Sprintf("%s%s/%s/%d-", checkpoints, u.Stack, u.ID, time.Now().UnixNano())
	key, sum, err := objects.Save(ctx, s.objects, prefix, content)
	return store.State{Stack: u.Stack, Version: u.Version, Object: key, Hash: sum[:], Bytes: int64(len(content))}, err
}

// moveState replaces the state of a version. It returns the object that no row refers to any more, if there is one.
// Delete it after the transaction.
func moveState(t *store.Tx, to store.State) (unused string, err error) {
	before, _, err := t.State(to.Stack, to.Version)
	if err != nil {
		return "", err
	}
	if err := t.MoveState(to); err != nil {
		return "", err
	}
	used, err := t.ObjectUsed(before.Object)
	if err != nil || used {
		return "", err
	}
	return before.Object, nil
}

// deleteObject deletes an object that no row refers to. If it fails, sweepObjects deletes the object later.
func (s *Server) deleteObject(ctx context.Context, key string) {
	if key == "" {
		return
	}
	if err := s.objects.Delete(ctx, key); err != nil {
		s.log.Warn("cannot delete an unused object", "component", "updates", "error", err)
	}
}

// sweepObjects deletes objects that no row refers to, such as those of deleted stacks, and those of crashes. It spares
// new objects, because their rows may not be written yet.
func (s *Server) sweepObjects(ctx context.Context, now time.Time) error {
	for object, err := range s.objects.List(ctx, checkpoints) {
		if err != nil {
			return err
		}
		if now.Sub(object.Modified) < orphanAge {
			continue
		}
		var used bool
		err := s.db.Read(ctx, func(t *store.Tx) (err error) {
			used, err = t.ObjectUsed(object.Key)
			return err
		})
		if err != nil {
			return err
		}
		if !used {
			s.deleteObject(ctx, object.Key)
		}
	}
	return nil
}

// saveCheckpoint replaces the state of a running update.
func (s *Server) saveCheckpoint(c *call) (reply, error) {
	u, err := s.updateWithState(c, false) // before a large body is read
	if err != nil {
		return reply{}, err
	}
	d, err := c.readDeployment()
	if err != nil {
		return reply{}, err
	}
	saved, err := s.saveState(c.Context(), u, d)
	if err != nil {
		return reply{}, err
	}
	var unused string
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		u, err := heldUpdate(t, c)
		if err != nil {
			return err
		}
		if unused, err = moveState(t, saved); err != nil {
			return err
		}
		return t.SetResources(u.ID, d.Count())
	})
	if err == nil {
		s.deleteObject(c.Context(), unused)
	}
	return reply{}, err
}

// updateWithState returns the running update of the caller's lease, whose state the caller changes by a journal or by
// checkpoints.
func (s *Server) updateWithState(c *call, journal bool) (u store.Update, err error) {
	err = s.db.Read(c.Context(), func(t *store.Tx) error {
		if u, err = heldUpdate(t, c); err != nil {
			return err
		}
		switch {
		case u.DryRun:
			return badRequest("a dry run cannot change the state")
		case journal && u.Journal == 0:
			return badRequest("the update was started without a journal: send checkpoints")
		case !journal && u.Journal > 0:
			return badRequest("the update was started with a journal: send entries of the journal")
		}
		return nil
	})
	return u, err
}

// journalCheck is the check of the journal of a running update. It is made from the database when it is missing, so it
// can be forgotten at any time.
type journalCheck struct {
	mu     sync.Mutex
	check  *state.Check // nil if it is unknown which entries it contains
	length int64        // batches of the journal that check contains
}

// saveJournal appends entries to the journal of a running update. It refuses entries that do not fit those before, so
// that the journal always gives a state.
func (s *Server) saveJournal(c *call) (reply, error) {
	if _, err := s.updateWithState(c, true); err != nil { // before a large body is read
		return reply{}, err
	}
	text, err := c.text(maxStateBody)
	if err != nil {
		return reply{}, err
	}
	entries, err := state.Entries(text)
	if err != nil {
		return reply{}, badRequest("%v", err)
	}
	packed := objects.Pack(text)

	created := &journalCheck{}
	one, found, _ := s.checks.PeekOrAdd(c.caller.subject, created)
	if !found {
		one = created
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if err := s.appendJournal(c, one, entries, packed); err != nil {
		one.check = nil // it may contain entries that are not stored
		return reply{}, err
	}
	return reply{}, nil
}

func (s *Server) appendJournal(c *call, one *journalCheck, entries []state.Entry, packed []byte) error {
	u, err := s.updateWithState(c, true)
	if err != nil {
		return err
	}
	if err := s.addStored(c.Context(), one, u); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := one.check.Add(entry); err != nil {
			return badRequest("%v", err)
		}
	}
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		u, err := heldUpdate(t, c)
		if err != nil {
			return err
		}
		return t.AddJournal(u.ID, one.length+1, packed)
	})
	if errors.Is(err, store.ErrDuplicate) { // another instance of the service has added entries
		return refuse(http.StatusServiceUnavailable, "another request adds to the journal at the same time: try again")
	}
	one.length++
	return err
}

// addStored adds the stored entries to the check of a journal that it does not contain: all of them to a new check, and
// those of other instances of the service to an old one.
func (s *Server) addStored(ctx context.Context, one *journalCheck, u store.Update) error {
	if one.check == nil {
		base, _, err := s.readVersion(ctx, u.Stack, u.Version)
		if err != nil {
			return err
		}
		one.check, one.length = state.NewCheck(base.Count()), 0
	}
	var missing journalOf
	err := s.db.Read(ctx, func(t *store.Tx) (err error) {
		missing.entries, err = t.Journal(u.ID, one.length)
		return err
	})
	if err != nil {
		return err
	}
	one.length += int64(len(missing.entries))
	return missing.each(one.check.Add)
}

// journalOf is the journal of the running update that makes a version.
type journalOf struct {
	client  string   // version
	entries [][]byte // gzipped bodies of requests
}

// each calls add for each entry.
func (j journalOf) each(add func(state.Entry) error) error {
	for _, packed := range j.entries {
		text, err := objects.Unpack(packed)
		if err != nil {
			return fmt.Errorf("read a journal: %w", err)
		}
		entries, err := state.Entries(text)
		if err != nil {
			return fmt.Errorf("read a journal: %w", err)
		}
		for _, entry := range entries {
			if err := add(entry); err != nil {
				return fmt.Errorf("read a journal: %w", err)
			}
		}
	}
	return nil
}

// readVersion returns the state of a version without its journal, and the journal if the update of the version runs.
func (s *Server) readVersion(ctx context.Context, stack string, version int64) (*state.Deployment, journalOf, error) {
	for attempt := 1; ; attempt++ {
		var row store.State
		var journal journalOf
		err := s.db.Read(ctx, func(t *store.Tx) error {
			var found bool
			var err error
			if row, found, err = t.State(stack, version); err != nil {
				return err
			}
			if !found && version > 0 {
				return notFound("the stack has no version %d", version)
			}
			holder, _, err := t.LockHolder(stack)
			if err != nil || holder.Version != version || version == 0 {
				return err
			}
			journal.client = holder.Client
			journal.entries, err = t.Journal(holder.ID, 0)
			return err
		})
		if err != nil || row.Object == "" {
			return state.Empty(), journal, err
		}
		content, err := objects.Load(ctx, s.objects, row.Object, row.Hash)
		if errors.Is(err, fs.ErrNotExist) && attempt < readAttempts {
			continue
		}
		if err != nil {
			return nil, journal, err
		}
		d, err := state.Decode(content)
		if err != nil {
			return nil, journal, fmt.Errorf("read the state of version %d: %w", version, err)
		}
		return d, journal, nil
	}
}

// replay returns the state of a version, and the number of batches of a journal that it includes.
func (s *Server) replay(
	ctx context.Context, stack string, version int64, at time.Time,
) (d *state.Deployment, batches int64, err error) {
	base, stored, err := s.readVersion(ctx, stack, version)
	if err != nil || len(stored.entries) == 0 {
		return base, 0, err
	}
	journal := state.NewJournal(base)
	if err := stored.each(journal.Add); err != nil {
		return nil, 0, err
	}
	return journal.Deployment(at, stored.client), int64(len(stored.entries)), nil
}

// folded is the state of an update with a journal. Length is the number of batches of the journal that it includes.
type folded struct {
	store.State
	resources, length int64
}

// foldJournal stores the state of the journal of an update as an object. Without a journal it does nothing.
func (s *Server) foldJournal(ctx context.Context, u store.Update, at time.Time) (f folded, err error) {
	if u.Journal == 0 {
		return f, nil
	}
	d, length, err := s.replay(ctx, u.Stack, u.Version, at)
	if err != nil || length == 0 {
		return f, err
	}
	f.length, f.resources = length, int64(d.Count())
	f.State, err = s.saveState(ctx, u, d)
	return f, err
}

// parseVersion reads a version of the state of a stack.
func (s stack) parseVersion(text string) (int64, error) {
	version, err := parseNumber("version", text, 0, math.MaxInt64)
	if err == nil && version > s.Version {
		err = notFound("the stack has no version %d: its newest is %d", version, s.Version)
	}
	return version, err
}

// exportStack returns a state of a stack: that of a version, or the newest one with the changes of a running update.
func (s *Server) exportStack(c *call) (reply, error) {
	var st stack
	var version int64
	err := s.db.Read(c.Context(), func(t *store.Tx) (err error) {
		if st, err = s.stackFromPath(t, c); err != nil {
			return err
		}
		version = st.Version
		if text := c.PathValue("version"); text != "" {
			version, err = st.parseVersion(text)
			return err
		}
		holder, running, err := t.LockHolder(st.ID)
		if running {
			version = holder.Version
		}
		return err
	})
	if err != nil {
		return reply{}, err
	}
	d, _, err := s.replay(c.Context(), st.ID, version, c.now)
	if err != nil {
		return reply{}, err
	}
	d = state.RewriteProvider(d, s.clientURL(c), st.Organization, st.Project, st.Name)
	return reply{body: rawJSON(d.Encode())}, nil
}

// rawJSON is the body of a response as JSON text.
type rawJSON []byte

// importStack makes a version of a stack whose state is that of the body.
func (s *Server) importStack(c *call) (reply, error) {
	var st stack
	err := s.db.Read(c.Context(), func(t *store.Tx) (err error) { // before a large body is read
		if st, err = s.stackFromPath(t, c); err != nil {
			return err
		}
		return idle(t, st.ID)
	})
	if err != nil {
		return reply{}, err
	}
	d, err := c.readDeployment()
	if err != nil {
		return reply{}, err
	}
	u := importOf(c, d)
	u.Stack = st.ID
	saved, err := s.saveState(c.Context(), u, d)
	if err != nil {
		return reply{}, err
	}
	err = s.db.Write(c.Context(), func(t *store.Tx) error {
		now, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		if now.ID != st.ID {
			return conflict("the stack was replaced meanwhile: try again")
		}
		u.Version = now.Version + 1
		return addImport(t, c, u, saved)
	})
	if err != nil {
		return reply{}, err
	}
	s.log.Info("state imported", "component", "updates", "update", u.ID, "stack", u.Stack,
		"version", strconv.FormatInt(u.Version, 10))
	return reply{body: map[string]string{"updateId": u.ID}}, nil
}

// importOf returns the update that makes d the state of a stack.
func importOf(c *call, d *state.Deployment) store.Update {
	return store.Update{
		ID: newID(), Kind: "import", Status: succeeded, Environment: "{}", Config: "{}", Changes: "{}",
		Resources: int64(d.Count()), Client: clientVersion(c.UserAgent()), Created: c.now, Started: c.now, Ended: c.now,
	}
}

// addImport stores a complete update and its state, unless an update of the stack is running.
func addImport(t *store.Tx, c *call, u store.Update, saved store.State) (err error) {
	if err := idle(t, u.Stack); err != nil {
		return err
	}
	if u.Requester, u.Deployment, err = requester(t, c); err != nil {
		return err
	}
	if err := t.AddUpdate(u); err != nil {
		return err
	}
	saved.Version = u.Version
	if err := t.AddState(saved); err != nil {
		return err
	}
	return t.EndUpdate(u)
}
