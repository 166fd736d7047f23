package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/store"
)

// Limits of updates.
const (
	maxMessage     = 10_000         // bytes of the message of an update; the rest is cut off
	startLimit     = 24 * time.Hour // an update that has not started is forgotten after this time
	maxLeaseRenews = 300            // seconds that a client may ask for
	expiredBatch   = 100            // updates that one query of the expiry returns
)

// updateKinds are the kinds of updates that a client creates. Each is the last part of a path.
func updateKinds() []string { return []string{"update", "preview", "refresh", "destroy"} }

// sentObject is a JSON object as the client has sent it, whose fields are of type V: clients cannot read a history with
// other values. The zero value is the empty object.
type sentObject[V any] struct{ text []byte }

func (o *sentObject[V]) UnmarshalJSON(text []byte) error {
	var fields map[string]V
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if fields != nil {
		o.text = append([]byte{}, text...)
	}
	return nil
}

func (o sentObject[V]) String() string {
	if o.text == nil {
		return "{}"
	}
	return string(o.text)
}

// configValue is a value of the configuration of an update (ConfigValue in Pulumi's apitype).
type configValue struct {
	String string `json:"string"`
	Secret bool   `json:"secret"`
	Object bool   `json:"object"`
}

// createUpdate creates an update of a kind, which the client starts afterwards. An update with the option dryRun, and
// each preview, is a dry run: it changes neither the state nor the version of its stack.
func (s *Server) createUpdate(kind string) handler {
	return func(c *call) (reply, error) {
		var body struct {
			Options struct {
				DryRun bool `json:"dryRun"`
			} `json:"options"`
			Config   sentObject[configValue] `json:"config"`
			Metadata struct {
				Message     string             `json:"message"`
				Environment sentObject[string] `json:"environment"`
			} `json:"metadata"`
		}
		if err := c.decode(maxBody, &body); err != nil {
			return reply{}, err
		}
		u := store.Update{
			ID: newID(), Kind: kind, DryRun: kind == "preview" || body.Options.DryRun, Status: notStarted,
			Expires: c.now.Add(startLimit), Message: body.Metadata.Message,
			Environment: body.Metadata.Environment.String(), Config: body.Config.String(), Changes: "{}",
			Client: clientVersion(c.UserAgent()), Created: c.now,
		}
		if len(u.Message) > maxMessage {
			u.Message = strings.ToValidUTF8(u.Message[:maxMessage], "")
		}
		err := s.db.Write(c.Context(), func(t *store.Tx) error {
			st, err := s.stackFromPath(t, c)
			if err != nil {
				return err
			}
			u.Stack = st.ID
			if u.Requester, u.Deployment, err = requester(t, c); err != nil {
				return err
			}
			return t.AddUpdate(u)
		})
		return reply{body: map[string]any{"updateID": u.ID, "requiredPolicies": []empty{}, "messages": []empty{}}}, err
	}
}

// requester returns the user who makes an update, and the deployment if its job makes the update.
func requester(t *store.Tx, c *call) (user, deployment string, err error) {
	if c.caller.kind != stackToken {
		return c.caller.subject, "", nil
	}
	user, err = t.DeploymentRequester(c.caller.subject)
	return user, c.caller.subject, err
}

// clientVersion returns the version in the User-Agent of Pulumi's CLI, such as v3.259.0. It is empty for other clients.
func clientVersion(userAgent string) string {
	found := regexp.MustCompile(`^pulumi-cli/\S+ \((v[0-9][0-9A-Za-z.+-]{0,90})[;)]`).FindStringSubmatch(userAgent)
	if found == nil {
		return ""
	}
	return found[1]
}

// updateFromPath returns the update that a path names.
func (s *Server) updateFromPath(t *store.Tx, c *call) (store.Update, stack, error) {
	st, err := s.stackFromPath(t, c)
	if err != nil {
		return store.Update{}, st, err
	}
	u, found, err := t.Update(c.PathValue("update"))
	if err == nil && (!found || u.Stack != st.ID) {
		err = notFound("there is no update %q of stack %s", c.PathValue("update"), st.Path())
	}
	return u, st, err
}

// startUpdate starts an update and returns the token of its lease. An update that is no dry run takes the lock of the
// stack. Its version gets a state at once: that of the version before.
func (s *Server) startUpdate(c *call) (reply, error) {
	var body struct {
		Tags    *map[string]string `json:"tags"`
		Journal int                `json:"journalVersion"`
	}
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	if body.Tags != nil {
		if err := checkTags(*body.Tags); err != nil {
			return reply{}, err
		}
	}
	if err := s.freeExpiredLock(c); err != nil {
		return reply{}, err
	}

	token := updateToken.mint()
	var u store.Update
	var version int64
	err := s.db.Write(c.Context(), func(t *store.Tx) (err error) {
		var st stack
		if u, st, err = s.updateFromPath(t, c); err != nil {
			return err
		}
		if u.Status != notStarted {
			return conflict("the update has been started already: create another one")
		}
		u.Status, u.Started, u.Expires = running, c.now, c.now.Add(s.options.UpdateLease)
		if version = st.Version; !u.DryRun {
			version++
			u.Version, u.Journal = version, min(max(body.Journal, 0), journalVersion)
			u.Resources = st.Resources
			if err := copyState(t, u); err != nil {
				return err
			}
			if body.Tags != nil {
				if err := t.SetStackTags(st.ID, *body.Tags); err != nil {
					return err
				}
			}
		}
		return t.StartUpdate(u, hash(token))
	})
	switch {
	case errors.Is(err, store.ErrDuplicate):
		return reply{}, conflict("another update of the stack is running: wait for its end, or run \"pulumi cancel\"")
	case err != nil:
		return reply{}, err
	}
	s.log.Info("update started", "component", "updates", "update", u.ID, "stack", u.Stack, "kind", u.Kind,
		"dry_run", u.DryRun)
	answer := map[string]any{"version": version, "token": token.Reveal(), "tokenExpiration": u.Expires.Unix()}
	if u.Journal > 0 {
		answer["journalVersion"] = u.Journal
	}
	return reply{body: answer}, nil
}

// copyState gives the version of an update the state of the version before.
func copyState(t *store.Tx, u store.Update) error {
	before, _, err := t.State(u.Stack, u.Version-1)
	if err != nil {
		return err
	}
	before.Version = u.Version
	return t.AddState(before)
}

// freeExpiredLock ends the update that has the lock of a stack, if its lease has expired.
func (s *Server) freeExpiredLock(c *call) error {
	var holder store.Update
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		st, err := s.stackFromPath(t, c)
		if err != nil {
			return err
		}
		holder, _, err = t.LockHolder(st.ID)
		return err
	})
	if err != nil || holder.ID == "" || holder.Expires.After(c.now) {
		return err
	}
	return s.failUpdate(c.Context(), holder, c.now)
}

// heldUpdate returns the running update of the caller's lease. Its errors have the status 403, because only 403 stops
// the renewals of Pulumi's CLI. The caller must change the state only in the transaction that has called heldUpdate.
func heldUpdate(t *store.Tx, c *call) (store.Update, error) {
	u, found, err := t.Update(c.caller.subject)
	if err != nil {
		return u, err
	}
	if !found || u.ID != c.PathValue("update") || u.Status != running || !u.Expires.After(c.now) {
		return u, leaseLost()
	}
	return u, nil
}

func leaseLost() error {
	return refuse(http.StatusForbidden,
		"the lease is lost: the update has ended, was cancelled, or was not renewed in time")
}

// renewUpdate renews a lease. The token stays the same.
func (s *Server) renewUpdate(c *call) (reply, error) {
	var body struct {
		Duration int `json:"duration"` // seconds; 0 means the usual time
	}
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	if body.Duration < 0 || body.Duration > maxLeaseRenews {
		return reply{}, badRequest("duration must be a number of seconds from 0 to %d", maxLeaseRenews)
	}
	lease := s.options.UpdateLease
	if body.Duration > 0 {
		lease = min(lease, time.Duration(body.Duration)*time.Second)
	}
	expires := c.now.Add(lease)
	err := s.db.Write(c.Context(), func(t *store.Tx) error {
		u, err := heldUpdate(t, c)
		if err != nil {
			return err
		}
		return t.RenewUpdate(u.ID, expires)
	})
	token, _ := bearer(c.Request, updateScheme)
	return reply{body: map[string]any{"token": token.Reveal(), "tokenExpiration": expires.Unix()}}, err
}

// completeUpdate ends an update as its client reports. A repeat with the same status is accepted.
func (s *Server) completeUpdate(c *call) (reply, error) {
	var body struct {
		Status string `json:"status"`
	}
	if err := c.decode(maxBody, &body); err != nil {
		return reply{}, err
	}
	if body.Status != succeeded && body.Status != failed && body.Status != cancelled {
		return reply{}, badRequest("status must be succeeded, failed or cancelled")
	}
	if c.caller.subject != c.PathValue("update") {
		return reply{}, leaseLost()
	}
	return reply{}, s.endUpdate(c.Context(), c.caller.subject, body.Status, c.now, func(u store.Update) error {
		switch {
		case u.Status == running && u.Expires.After(c.now):
			return nil
		case u.Status == running || !u.Ended.Before(u.Expires):
			return leaseLost()
		case u.Status == body.Status:
			return store.ErrNoChange
		}
		return conflict("the update has ended as %s", u.Status)
	})
}

// cancelUpdate ends a running update. Its client learns it when its next call is refused.
func (s *Server) cancelUpdate(c *call) (reply, error) {
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		_, _, err := s.updateFromPath(t, c)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	return reply{}, s.endUpdate(c.Context(), c.PathValue("update"), cancelled, c.now, func(u store.Update) error {
		if u.Status != running {
			return conflict("the update is not running: its status is %s", u.Status)
		}
		return nil
	})
}

// failUpdate ends an update that was found with an expired lease, or after the end of its deployment.
func (s *Server) failUpdate(ctx context.Context, found store.Update, now time.Time) error {
	return s.endUpdate(ctx, found.ID, failed, now, func(u store.Update) error {
		if u.Status != running || u.Expires != found.Expires {
			return store.ErrNoChange // meanwhile it has ended or its lease was renewed
		}
		return nil
	})
}

// endUpdate ends a running update and releases the lock of its stack. Also after a failure its state is the next
// version, because it describes what exists. Check decides whether the update may end: its error, such as
// [store.ErrNoChange], is returned and nothing changes.
//
//  1. The state of a journal is computed and stored as an object.
//  2. In one transaction, the update gets its status, the stack its version, and the lock is released. If entries
//     were added to the journal meanwhile, start again.
func (s *Server) endUpdate(
	ctx context.Context, id, status string, now time.Time, check func(store.Update) error,
) error {
	var u store.Update
	for again := true; again; {
		// 1. Compute the state of the journal.
		err := s.db.Read(ctx, func(t *store.Tx) (err error) {
			u, err = updateToEnd(t, id, check)
			return err
		})
		if err != nil || u.ID == "" {
			return err
		}
		folded, err := s.foldJournal(ctx, u, now)
		if err != nil {
			return err
		}

		// 2. End the update.
		var unused string
		err = s.db.Write(ctx, func(t *store.Tx) error {
			if u, err = updateToEnd(t, id, check); err != nil {
				return err
			}
			length, err := t.JournalLength(id)
			if err != nil {
				return err
			}
			if again = length != folded.length; again {
				return store.ErrNoChange
			}
			if folded.length > 0 {
				folded.Version, u.Resources = u.Version, folded.resources
				if unused, err = moveState(t, folded.State); err != nil {
					return err
				}
				if err := t.DropJournal(id); err != nil {
					return err
				}
			}
			u.Ended, u.Status = now, status
			if err := t.EndUpdate(u); err != nil || u.Deployment == "" {
				return err
			}
			return release(t, u.Deployment)
		})
		if err != nil {
			return err
		}
		s.deleteObject(ctx, unused)
	}
	s.checks.Remove(id)
	s.log.Info("update ended", "component", "updates", "update", id, "stack", u.Stack, "status", status,
		"deployment", u.Deployment, "lease_expired", !u.Expires.After(now))
	return nil
}

// updateToEnd returns an update that may end.
func updateToEnd(t *store.Tx, id string, check func(store.Update) error) (store.Update, error) {
	u, found, err := t.Update(id)
	if err == nil && !found { // deleted with its stack
		err = leaseLost()
	}
	if err == nil {
		err = check(u)
	}
	if err != nil {
		return store.Update{}, err
	}
	return u, nil
}

// expireUpdates ends updates whose lease has expired or whose deployment has ended, and forgets those that
// were never started.
func (s *Server) expireUpdates(ctx context.Context, now time.Time) error {
	var lost []store.Update
	err := s.db.Read(ctx, func(t *store.Tx) (err error) {
		lost, err = t.LostUpdates(now, now.Add(-stopTime), expiredBatch)
		return err
	})
	for _, u := range lost {
		err = errors.Join(err, s.failUpdate(ctx, u, now)) // the failure of one keeps no other stack locked
	}
	return errors.Join(err, s.db.Write(ctx, func(t *store.Tx) error { return t.DropUnstarted(now) }))
}

// getUpdate returns the status of an update, which Pulumi's clients poll until continuationToken is missing. The events
// of this call have an old form that no client shows; those of getEvents are complete.
func (s *Server) getUpdate(c *call) (reply, error) {
	view := map[string]any{"events": []empty{}}
	err := s.db.Read(c.Context(), func(t *store.Tx) error {
		u, _, err := s.updateFromPath(t, c)
		view["status"] = strings.ReplaceAll(u.Status, "-", " ")
		if u.Ended.IsZero() {
			view["continuationToken"] = "0"
		}
		return err
	})
	return reply{body: view}, err
}
