package reconcile

import (
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// settleTime is how long a file that is written in place must stay unchanged before the
// Reloader rejects it, or accepts a change of pools, credentials or the listener: see [Reload.moves].
const settleTime = time.Second

// rewriteGrace is how long a file that had content may be empty or missing while a writer
// replaces it.
const rewriteGrace = 2 * time.Second

// errEmpty is the reason for rejecting a file that had content and is now empty.
var errEmpty = errors.New("configuration file is missing or empty: restore it, " +
	"or restart the agent to run without one")

// fileState identifies the file that a reload read, and its content.
type fileState struct {
	path string
	file schema.FileID
	sum  [sha256.Size]byte // of the content
}

// recordRead stores the file that was read now, and when it was last written in place. For
// example:
//
//   - "mv new.yaml agent.yaml" replaces the file by another one, which no process writes to at this
//     path. It is complete.
//   - "echo 'max_jobs: 2' >> agent.yaml" changes the file in place. More lines may follow.
//   - "rm agent.yaml; cat > agent.yaml" creates another file that is written at this path. More
//     lines may follow.
//
// A source that is not a file, or has no id, counts as complete.
func (r *Reloader) recordRead(source schema.Source, now time.Time) {
	last := r.lastRead
	r.lastRead = fileState{source.Path, source.FileID, sha256.Sum256(source.Content)}
	samePath := r.lastRead.path == last.path
	if samePath && r.lastRead.sum == last.sum {
		return // unchanged, so the time of the last write stays
	}
	unknown := schema.FileID{}
	written := r.parts.Written != nil && r.parts.Written(source.Path)
	replaced := samePath && last.file != unknown && last.file != r.lastRead.file && !written
	if replaced || r.lastRead.file == unknown {
		r.writtenAt = time.Time{}
	} else {
		r.writtenAt = now
	}
}

// recordFiles stores when a file that the configuration names was last written in place. It
// omits files that the last configuration did not name, because they were not watched.
func (r *Reloader) recordFiles(files []string, now time.Time) {
	for _, path := range files {
		if r.parts.Written != nil && r.parts.Written(path) && slices.Contains(r.lastFiles, path) {
			r.writtenAt = now
		}
	}
	r.lastFiles = files
}

// mustSettle reports whether a result must wait because its file may be incomplete. It must
// wait if the file has changed within settleTime, and it has an error, or the change moves something
// (see [Reload.moves]), or an earlier change waits. Other changes do not wait, because the reload of
// the complete file corrects them. The first configuration never waits.
func (r *Reloader) mustSettle(result schema.LoadResult, now time.Time, wasSettling bool) bool {
	before := r.State().Config
	if r.writtenAt.IsZero() || now.Sub(r.writtenAt) >= settleTime || before == nil || before.Digest == result.Digest {
		return false
	}
	return wasSettling || result.Config == nil || slices.ContainsFunc(Preview(before, result.Config), Reload.moves)
}

// credentialKeys are the keys of the secrets with which a pool polls. A change of any other
// key that determines the credentials replaces the pool.
var credentialKeys = []string{"token", "token_file", "oidc_token_file"}

// moves reports whether a reload starts, drains or replaces a pool, moves the agent's
// listener, or gives a pool other credentials. The next reload cannot undo these changes,
// because jobs may have been claimed, or tokens sent to another service.
func (r Reload) moves() bool {
	switch r.PoolChange {
	case Started, Drained, Replaced:
		return true
	}
	return slices.ContainsFunc(r.Changes, func(c Change) bool {
		return c.Effect == Drain || c.Effect == Rebind || slices.Contains(credentialKeys, c.Key)
	})
}
