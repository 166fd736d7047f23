package reconcile

import (
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// settleTime is how long a file that is written in place must stay as it is before a
// change that moves pools, credentials or the listener is taken from it.
const settleTime = time.Second

// rewriteGrace is how long a file that had content may be empty or missing, while
// a writer replaces it.
const rewriteGrace = 2 * time.Second

// errEmpty is the reason for rejecting a file that had content and has none now.
var errEmpty = errors.New("the configuration file is gone, or empty: restore it; " +
	"to go on without one, restart the agent")

// reading is what one reload read.
type reading struct {
	path string
	file schema.FileID
	sum  [sha256.Size]byte // of the content
}

// note stores what was read now, and when the file was last written in place. A file
// that replaced another one by a rename is complete. One that has changed in place may
// have more lines to come, and so may one that was created there, in place of another
// one or of none. A source that is no file, or has no id, counts as complete.
func (r *Reloader) note(source schema.Source, now time.Time) {
	last := r.lastRead
	r.lastRead = reading{source.Path, source.FileID, sha256.Sum256(source.Content)}
	unknown := schema.FileID{}
	written := r.parts.Written != nil && r.parts.Written(source.Path)
	samePath := r.lastRead.path == last.path
	switch {
	case samePath && r.lastRead.sum == last.sum:
		// Unchanged: quiet since then.
	case r.lastRead.file == unknown, samePath && last.file != unknown && last.file != r.lastRead.file && !written:
		r.writtenAt = time.Time{}
	default:
		r.writtenAt = now
	}
}

// mustSettle reports whether the outcome must wait because its file may still be
// being written: the file has not been quiet for settleTime, and the change moves
// something, or it follows a change that waits. A change that moves nothing does not
// wait, as the next line corrects it; the first configuration has nothing to protect.
func (r *Reloader) mustSettle(outcome schema.Outcome, now time.Time, wasSettling bool) bool {
	before := r.View().Config
	if r.writtenAt.IsZero() || now.Sub(r.writtenAt) >= settleTime ||
		before == nil || outcome.Config == nil || before.Digest == outcome.Digest {
		return false
	}
	return wasSettling || slices.ContainsFunc(Preview(before, outcome.Config), Reload.moves)
}

// credentialKeys are the keys of the secrets with which a pool polls. Other keys of
// credentials make it another pool.
var credentialKeys = []string{"token", "token_file", "oidc_token_file"}

// moves reports whether a reload starts, drains or replaces a pool, moves the
// agent's listener, or gives a pool other credentials: what cannot be undone by the
// next reload, since by then jobs were claimed or tokens sent elsewhere.
func (r Reload) moves() bool {
	switch r.Fate {
	case Started, Drained, Replaced:
		return true
	}
	return slices.ContainsFunc(r.Changes, func(c Change) bool {
		return c.Effect == schema.ReloadDrain || c.Effect == schema.ReloadRebind || slices.Contains(credentialKeys, c.Key)
	})
}
