package reconcile

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema"
)

// Follower makes what a configuration file says what the loop wants, again and
// again: read, check, compare, and either replace what is wanted or leave it and
// say why. It is level, not edge: [Follower.Look] may be called at any time and
// as often as one likes.
type Follower struct {
	parts FollowerParts
	log   *slog.Logger

	look  sync.Mutex      // one look at a time; it guards the rest of this group
	seen  string          // digest of the last outcome, good or bad
	said  schema.Problems // of that outcome
	last  error           // what came of it
	path  string          // of the file that it came from
	full  bool            // a file has had content
	since time.Time       // since when a writer may be in mid-air; zero is not

	read    reading   // at the last look
	written time.Time // when the file was last seen to be written in place; zero is never, or it was replaced since
	held    bool      // a change waits for the file to be quiet

	mu   sync.Mutex
	view View
}

// FollowerParts is what a follower works with.
type FollowerParts struct {
	Find  func() (schema.Source, error) // reads the file
	Want  func(Desired)                 // takes what is wanted; the latest wins
	Watch func(paths ...string)         // takes the files that matter now
	Log   *slog.Logger

	// Written reports whether the file behind a path was written since the last
	// call, and not renamed there after it was written. Nil is not known.
	Written func(path string) bool
}

// View is what a follower knows: a snapshot.
type View struct {
	Config     *schema.Config  // the last good one; nil before the first
	Warnings   schema.Problems // that it has
	Generation uint64          // of it, from 1
	AcceptedAt time.Time
	Accepted   uint64     // reloads that were taken since the start, the first load included
	Rejected   uint64     // reloads that were refused
	RejectedAt time.Time  // the last of them, also if it was undone since
	Rejection  *Rejection // of what the file says now; nil if that is in force
	LastReload []Reload   // what the last reload changed
	Seconds    float64    // that the last load, check and comparison took
}

// Rejection is a state of the file that is not used.
type Rejection struct {
	At       time.Time
	Digest   string          // of what was refused; empty if it could not be read
	Problems schema.Problems // why; empty if Reason says it
	Reason   string
}

// NewFollower makes a follower that has seen nothing.
func NewFollower(parts FollowerParts) *Follower {
	return &Follower{parts: parts, log: parts.Log.With("component", "config")}
}

// View returns a snapshot.
func (f *Follower) View() View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.view
}

// Look reads the file and does what follows from it. It returns an error if the
// file is refused; what was in force before is in force then. The first look
// decides whether a process can begin; who looks again may ignore the error,
// because it has been logged and stands in the view.
//
//  1. What cannot be read is refused.
//  2. A file that had content and is empty or gone is a writer in mid-air: wait,
//     but not for ever.
//  3. What was seen last, with the same problems, is not looked at twice.
//  4. What is in force already, after a bad edit was undone, only ends the
//     rejection.
//  5. What holds an error is refused.
//  6. After a write in place, what would move pools, credentials or the listener
//     waits until the file has been quiet for settleTime, and what follows it too.
//  7. Everything else is the next generation.
func (f *Follower) Look() error {
	f.look.Lock()
	defer f.look.Unlock()
	begun := time.Now()
	waits := f.held
	f.held = false
	source, err := f.parts.Find()
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	if err != nil && !(gone && f.full) {
		f.seen, f.since = "", time.Time{}
		return f.refuse(Rejection{At: begun, Reason: err.Error()}, err)
	}
	if gone {
		f.read = reading{}
	} else {
		f.note(source, begun)
	}
	empty := f.full && (gone || len(bytes.TrimSpace(source.Content)) == 0)
	if empty || slices.Contains(source.Before, f.path) {
		if f.since.IsZero() {
			f.since = begun
		}
		switch {
		case begun.Sub(f.since) < airLimit:
			return nil
		case empty:
			f.seen, f.said = "", nil
			f.last = f.refuse(Rejection{At: begun, Reason: errEmpty.Error()}, errEmpty)
			return f.last
		}
	}
	f.full = f.full || len(bytes.TrimSpace(source.Content)) > 0
	moved := source.Path != f.path
	f.path, f.since = source.Path, time.Time{}
	outcome := schema.Evaluate(source)
	f.parts.Watch(slices.Concat(source.Before, []string{source.Path}, outcome.Files)...)
	if moved || outcome.Digest != f.seen || !slices.Equal(outcome.Problems, f.said) {
		if f.settling(outcome, begun, waits) {
			if f.held = true; !waits {
				f.log.Debug("configuration file is being written: change waits", "quiet_for", settleTime)
			}
			return nil
		}
		f.seen, f.said = outcome.Digest, outcome.Problems
		f.last = f.judge(outcome, begun)
	}
	return f.last
}

// Check is [Follower.Look] for somebody who asked for it: if nothing has changed, it
// logs that, too.
func (f *Follower) Check() error {
	before := f.View()
	err := f.Look()
	after, waits := f.View(), f.waits()
	switch {
	case after.Generation != before.Generation, after.Rejected != before.Rejected,
		(after.Rejection == nil) != (before.Rejection == nil):
		// Look has logged it.
	case waits:
		f.log.Info("configuration checked: file is being written, change waits", "generation", after.Generation)
	case after.Rejection != nil:
		f.log.Warn("configuration checked: file is still refused, no change", "generation", after.Generation, "error", err)
	default:
		f.log.Info("configuration checked: no change", "generation", after.Generation)
	}
	return err
}

// waits reports whether a change waits for the file to be complete.
func (f *Follower) waits() bool {
	f.look.Lock()
	defer f.look.Unlock()
	return f.held || !f.since.IsZero() && time.Since(f.since) < airLimit
}

// airLimit is how long a writer may be in mid-air.
const airLimit = 2 * time.Second

// errEmpty is why a file that had content and has none any more is refused.
var errEmpty = errors.New("the configuration file is gone, or empty: restore it; to go on without one, restart the agent")

// Again returns after which time to look again although nothing may have changed:
// 0 is never.
func (f *Follower) Again() time.Duration {
	f.look.Lock()
	defer f.look.Unlock()
	switch {
	case f.held:
		return max(time.Millisecond, time.Until(f.written.Add(settleTime)))
	case f.since.IsZero(), time.Since(f.since) > 2*airLimit:
		return 0
	default:
		return airLimit
	}
}

// judge does what follows from an outcome that is new.
func (f *Follower) judge(outcome schema.Outcome, begun time.Time) error {
	before := f.View().Config
	if before != nil && before.Digest == outcome.Digest && outcome.Config != nil {
		f.restored(outcome)
		return nil
	}
	if err := outcome.Problems.Err(); err != nil {
		return f.refuse(Rejection{At: begun, Digest: outcome.Digest, Problems: outcome.Problems}, err)
	}
	generation := f.View().Generation + 1
	f.accept(outcome, Want(outcome.Config, generation), begun)
	return nil
}

// accept makes an outcome what is wanted.
func (f *Follower) accept(outcome schema.Outcome, desired Desired, begun time.Time) {
	f.mu.Lock()
	before, known := f.view.Config, f.view.Warnings
	var reloads []Reload
	if before != nil {
		reloads = Preview(before, outcome.Config)
	}
	f.view.Config, f.view.Warnings = outcome.Config, outcome.Problems
	f.view.Generation, f.view.AcceptedAt = desired.Generation, time.Now()
	f.view.Accepted++
	f.view.Rejection, f.view.LastReload = nil, reloads
	f.view.Seconds = time.Since(begun).Seconds()
	f.mu.Unlock()
	for _, warning := range outcome.Problems {
		if !slices.Contains(known, warning) {
			f.log.Warn(inLine(warning))
		}
	}
	if before != nil {
		about := []any{"generation", desired.Generation}
		if path := outcome.Config.Path; path != before.Path {
			about = append(about, "file", path)
		}
		effects := ByEffect(reloads).logAttributes()
		message := "configuration changed"
		if len(effects) == 0 {
			message += ", and no setting in force: comments alone, or keys that a variable overlays or deploy_target does not use"
		}
		f.log.Info(message, append(about, effects...)...)
	}
	f.parts.Want(desired)
}

// refuse notes that the file is not used, and says so once.
func (f *Follower) refuse(rejection Rejection, err error) error {
	f.mu.Lock()
	first := f.view.Config == nil
	was := f.view.Rejection
	known := was != nil && was.Reason == rejection.Reason && was.Digest == rejection.Digest && slices.Equal(was.Problems, rejection.Problems)
	if !known {
		f.view.Rejected++
		f.view.Rejection, f.view.RejectedAt = &rejection, rejection.At
	}
	generation := f.view.Generation
	f.mu.Unlock()
	if first || known {
		return err // who began tells why it did not
	}
	if len(rejection.Problems) == 0 {
		f.log.Error("configuration refused: the one before stays in force", "generation", generation, "problem", rejection.Reason)
	}
	for _, problem := range rejection.Problems.Errors() {
		f.log.Error("configuration refused: the one before stays in force", "generation", generation, "problem", inLine(problem))
	}
	return err
}

// inLine writes a problem for a line of the log.
func inLine(p schema.Problem) string {
	hint := p.Hint
	p.Hint = ""
	if hint == "" {
		return p.String()
	}
	return p.String() + ": " + hint
}

// restored notes that a file says again what is in force, perhaps at another place.
func (f *Follower) restored(outcome schema.Outcome) {
	f.mu.Lock()
	refused := f.view.Rejection != nil
	if f.view.Config.Path != outcome.Config.Path {
		f.view.Config, f.view.Warnings = outcome.Config, outcome.Problems
	}
	f.view.Rejection = nil
	generation := f.view.Generation
	f.mu.Unlock()
	if refused {
		f.log.Info("configuration is again the one in force", "generation", generation)
	}
}

// logAttributes returns what a reload changes, by when it takes effect, as names
// of pools and keys for a line of the log. Empty lists are left out. A replaced
// pool is named without its keys.
func (e Effects) logAttributes() (attributes []any) {
	add := func(name string, values []string) {
		if len(values) > 0 {
			attributes = append(attributes, name, strings.Join(values, ", "))
		}
	}
	add("now", logNames(e.Now))
	add("next_job", logNames(e.NextJob))
	add("drained_and_replaced", e.Replaced)
	add("needs_restart", logNames(e.NeedsRestart))
	return attributes
}

// logNames returns the pool of each effect, and its changed key or what happens to
// the pool.
func logNames(effects []Effect) (names []string) {
	for _, e := range effects {
		name := e.Change.Key + string(e.Fate) // one of them is empty
		if e.Pool != "" {
			name = e.Pool + ": " + name
		}
		names = append(names, name)
	}
	return names
}
