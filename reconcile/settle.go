package reconcile

import (
	"crypto/sha256"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// settleTime is how long a file that is written in place must stay as it is before a
// change that moves pools, credentials or the listener is taken from it.
const settleTime = time.Second

// reading is what was read at one look.
type reading struct {
	path string
	file schema.FileID
	sum  [sha256.Size]byte // of the content
}

// note remembers what was read now, and when the file was last seen to be written in
// place. A file that was renamed into the place of another one is complete. One that
// has changed where it is may have more lines to come, and so may one that was made
// there, in the place of another one or of none. What is not a file, or has no id,
// counts as complete.
func (f *Follower) note(source schema.Source, now time.Time) {
	last := f.read
	f.read = reading{source.Path, source.FileID, sha256.Sum256(source.Content)}
	unknown := schema.FileID{}
	written := f.parts.Written != nil && f.parts.Written(source.Path)
	switch {
	case f.read.path == last.path && f.read.sum == last.sum:
		// As it was: quiet since then.
	case f.read.file == unknown, f.read.path == last.path && last.file != unknown && last.file != f.read.file && !written:
		f.written = time.Time{}
	default:
		f.written = now
	}
}

// settling reports whether the outcome must wait because its file may still be being
// written: the file has not been quiet for settleTime, and the change would move
// something, or the one before did and waits. A change that moves nothing is not
// worth the wait, as the next line corrects it; the first configuration has nothing
// to protect.
func (f *Follower) settling(outcome schema.Outcome, now time.Time, waits bool) bool {
	before := f.View().Config
	if f.written.IsZero() || now.Sub(f.written) >= settleTime ||
		before == nil || outcome.Config == nil || before.Digest == outcome.Digest {
		return false
	}
	return waits || slices.ContainsFunc(Preview(before, outcome.Config), Reload.moves)
}

// credentialKeys are the keys that say with which secret a pool asks for work, beside
// those that make it another pool.
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
