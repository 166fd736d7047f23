package reconcile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Reloader reads a configuration file, checks it, and delivers what it describes
// as the desired state. A file that is rejected leaves the previous generation in
// force. [Reloader.Reload] may be called at any time and any number of times. All
// methods are safe for concurrent use.
type Reloader struct {
	parts ReloaderParts
	log   *slog.Logger

	mu           sync.Mutex        // held by one reload at a time; guards this group
	want         func(Desired)     // see Deliver; nil before that
	lastDigest   string            // of the last outcome, accepted or rejected
	lastProblems position.Problems // of that outcome
	lastErr      error             // of that outcome
	lastPath     string            // of the file of that outcome
	lastRead     reading           // of the last reload
	hadContent   bool              // a file with content was read
	emptySince   time.Time         // since when the file is empty or missing; zero if it is neither
	writtenAt    time.Time         // last write in place; zero if there was none since the file was replaced
	settling     bool              // a change waits for the file to be quiet, see settleTime

	viewMu sync.Mutex
	view   View
}

// ReloaderParts are the functions that a Reloader uses.
type ReloaderParts struct {
	Find  func() (schema.Source, error) // reads the file
	Watch func(paths ...string)         // takes the files whose changes matter from now on
	Log   *slog.Logger

	// Written reports whether the file behind a path was written since the last
	// call, and not renamed there after it was written. Nil if that is unknown.
	Written func(path string) bool

	// Frozen reports whether a replacement of the file behind a path is never seen,
	// because of how it is mounted. Nil if no file is.
	Frozen func(path string) bool
}

// View is a snapshot of what a Reloader knows.
type View struct {
	Config     *schema.Config    // the last accepted one; nil before the first
	Warnings   position.Problems // of Config
	Frozen     []string          // files of Config whose replacement is never seen, by absolute path
	Generation uint64            // of Config, from 1
	AcceptedAt time.Time
	Accepted   uint64     // number of accepted reloads, the first load included
	Rejected   uint64     // number of rejected reloads
	RejectedAt time.Time  // time of the last of them, even if the file was corrected since
	Rejection  *Rejection // of the file as it is now; nil if that is in force
	LastReload []Reload   // what the last accepted reload changed
	Seconds    float64    // duration of the last accepted load, check and comparison
}

// Rejection is a state of the file that is not used.
type Rejection struct {
	At       time.Time
	Digest   string            // of the rejected configuration; empty if it could not be read
	Problems position.Problems // the reasons; empty if Reason is set
	Reason   string
}

// NewReloader returns a Reloader that has read nothing.
func NewReloader(parts ReloaderParts) *Reloader {
	return &Reloader{parts: parts, log: parts.Log.With("component", "config")}
}

// View returns a snapshot.
func (r *Reloader) View() View {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	return r.view
}

// Deliver calls want with the desired state of the accepted configuration, if there
// is one, and then with that of each generation that follows, in order. It is
// called once.
func (r *Reloader) Deliver(want func(Desired)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want = want
	if view := r.View(); view.Config != nil {
		want(Want(view.Config, view.Generation))
	}
}

// Reload reads the configuration and, if it is valid and new, makes it the next
// generation. It returns the error of a rejected file; the previous generation then
// stays in force. Only the caller of the first Reload needs the error: later ones
// are logged and part of the view.
//
//  1. A file that cannot be read is rejected.
//  2. A file that is suddenly empty or missing is probably being rewritten: wait up
//     to rewriteGrace for its content.
//  3. An outcome that equals the last one changes nothing.
//  4. A change that moves pools, credentials or the listener waits until a file that
//     is written in place has been quiet for settleTime. Changes that follow it wait
//     with it.
//  5. The configuration that is in force already only ends a rejection.
//  6. A configuration with errors is rejected.
//  7. Any other configuration is the next generation.
func (r *Reloader) Reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	wasSettling := r.settling
	r.settling = false

	// 1. Read the file, or reject it.
	source, err := r.parts.Find()
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	if err != nil && !(missing && r.hadContent) {
		r.lastDigest, r.emptySince = "", time.Time{}
		return r.reject(Rejection{At: now, Reason: err.Error()}, err)
	}
	if missing {
		r.lastRead = reading{}
	} else {
		r.note(source, now)
	}

	// 2. Empty or missing after it had content: give the writer time. A file that is
	// found at a later place takes over only after that time, too.
	hasContent := !missing && len(bytes.TrimSpace(source.Content)) > 0
	empty := r.hadContent && !hasContent
	if empty || slices.Contains(source.Before, r.lastPath) {
		if r.emptySince.IsZero() {
			r.emptySince = now
		}
		switch {
		case now.Sub(r.emptySince) < rewriteGrace:
			return nil
		case empty:
			r.lastDigest, r.lastProblems = "", nil
			r.lastErr = r.reject(Rejection{At: now, Reason: errEmpty.Error()}, errEmpty)
			return r.lastErr
		}
	}
	r.hadContent = r.hadContent || hasContent
	r.emptySince = time.Time{}

	// 3. Compare with the last outcome.
	moved := source.Path != r.lastPath
	r.lastPath = source.Path
	outcome := schema.Evaluate(source)
	r.parts.Watch(slices.Concat(source.Before, []string{source.Path}, outcome.Files)...)
	if !moved && outcome.Digest == r.lastDigest && slices.Equal(outcome.Problems, r.lastProblems) {
		return r.lastErr
	}

	// 4. Wait for a file that is being written in place.
	if r.mustSettle(outcome, now, wasSettling) {
		if r.settling = true; !wasSettling {
			r.log.Debug("configuration file is being written: change waits", "quiet_for", settleTime)
		}
		return nil
	}
	r.lastDigest, r.lastProblems = outcome.Digest, outcome.Problems
	r.lastErr = r.judge(outcome, now)
	return r.lastErr
}

// judge decides on a new outcome: points 5 to 7 of [Reloader.Reload].
func (r *Reloader) judge(outcome schema.Outcome, begun time.Time) error {
	view := r.View()

	// 5. In force already.
	if view.Config != nil && view.Config.Digest == outcome.Digest && outcome.Config != nil {
		r.restore(outcome)
		return nil
	}

	// 6. Errors.
	if err := outcome.Problems.Err(); err != nil {
		return r.reject(Rejection{At: begun, Digest: outcome.Digest, Problems: outcome.Problems}, err)
	}

	// 7. The next generation.
	r.accept(outcome, view.Generation+1, begun)
	if r.want != nil {
		r.want(Want(outcome.Config, view.Generation+1))
	}
	return nil
}

// Check is [Reloader.Reload] on request: if nothing has changed, it logs that, too.
func (r *Reloader) Check() error {
	before := r.View()
	err := r.Reload()
	after, waits := r.View(), r.waits()
	switch {
	case after.Generation != before.Generation, after.Rejected != before.Rejected,
		(after.Rejection == nil) != (before.Rejection == nil):
		// Reload has logged it.
	case waits:
		r.log.Info("configuration checked: file is being written, change waits", "generation", after.Generation)
	case after.Rejection != nil:
		r.log.Warn("configuration checked: file is still refused, no change",
			"generation", after.Generation, "error", err)
	default:
		r.log.Info("configuration checked: no change", "generation", after.Generation)
	}
	return err
}

// waits reports whether a change waits for the file to be complete.
func (r *Reloader) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settling || !r.emptySince.IsZero() && time.Since(r.emptySince) < rewriteGrace
}

// RecheckAfter returns the time after which Reload must be called again even if no
// file changes: 0 is never.
func (r *Reloader) RecheckAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.settling:
		return max(time.Millisecond, time.Until(r.writtenAt.Add(settleTime)))
	case r.emptySince.IsZero(), time.Since(r.emptySince) > 2*rewriteGrace:
		return 0
	default:
		return rewriteGrace
	}
}

// Triggers are the events after which [Reloader.Follow] reloads.
type Triggers struct {
	Changed     <-chan struct{}  // a file may have changed
	Asked       <-chan os.Signal // the operator asks for a check
	BeforeCheck func()           // called before a check that the operator asks for
	AfterCheck  func()           // called after it
}

// Follow reloads at once and after each trigger, until ctx ends. It warns once of
// each file whose replacement is never seen.
func (r *Reloader) Follow(ctx context.Context, on Triggers) error {
	warned := map[string]bool{}
	_ = r.Reload() // has logged its error
	for {
		// Warn of files whose replacement is never seen.
		for _, path := range r.View().Frozen {
			if !warned[path] {
				r.log.Warn("cannot see a replacement of this file: it is mounted by itself, or with subPath; "+
					"mount the folder that holds it", "file", path)
			}
			warned[path] = true
		}

		// Wait for the next trigger.
		var recheck <-chan time.Time
		if wait := r.RecheckAfter(); wait > 0 {
			recheck = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-recheck:
			_ = r.Reload()
		case <-on.Changed:
			_ = r.Reload()
		case <-on.Asked:
			on.BeforeCheck()
			_ = r.Check()
			on.AfterCheck()
		}
	}
}

// accept puts a configuration into force.
func (r *Reloader) accept(outcome schema.Outcome, generation uint64, begun time.Time) {
	// Replace the view.
	frozen := r.frozen(outcome.Config)
	r.viewMu.Lock()
	before, known := r.view.Config, r.view.Warnings
	var reloads []Reload
	if before != nil {
		reloads = Preview(before, outcome.Config)
	}
	r.view.Config, r.view.Warnings, r.view.Frozen = outcome.Config, outcome.Problems, frozen
	r.view.Generation, r.view.AcceptedAt = generation, time.Now()
	r.view.Accepted++
	r.view.Rejection, r.view.LastReload = nil, reloads
	r.view.Seconds = time.Since(begun).Seconds()
	r.viewMu.Unlock()

	// Log new warnings, and what changes.
	for _, warning := range outcome.Problems {
		if !slices.Contains(known, warning) {
			r.log.Warn(inLine(warning))
		}
	}
	if before == nil {
		return
	}
	attributes := []any{"generation", generation}
	if path := outcome.Config.Path; path != before.Path {
		attributes = append(attributes, "file", path)
	}
	effects := ByEffect(reloads).logAttributes()
	message := "configuration changed"
	if len(effects) == 0 {
		message += ", and no setting in force: comments alone, " +
			"or keys that a variable overlays or deploy_target does not use"
	}
	r.log.Info(message, append(attributes, effects...)...)
}

// reject notes that the file is not used, and logs that once.
func (r *Reloader) reject(rejection Rejection, err error) error {
	r.viewMu.Lock()
	first := r.view.Config == nil
	was := r.view.Rejection
	known := was != nil && was.Reason == rejection.Reason && was.Digest == rejection.Digest &&
		slices.Equal(was.Problems, rejection.Problems)
	if !known {
		r.view.Rejected++
		r.view.Rejection, r.view.RejectedAt = &rejection, rejection.At
	}
	generation := r.view.Generation
	r.viewMu.Unlock()
	if first || known {
		return err // the caller of the first Reload reports it
	}
	const message = "configuration refused: the one before stays in force"
	if len(rejection.Problems) == 0 {
		r.log.Error(message, "generation", generation, "problem", rejection.Reason)
	}
	for _, problem := range rejection.Problems.Errors() {
		r.log.Error(message, "generation", generation, "problem", inLine(problem))
	}
	return err
}

// inLine writes a problem for a line of the log.
func inLine(p position.Problem) string {
	hint := p.Hint
	p.Hint = ""
	if hint == "" {
		return p.String()
	}
	return p.String() + ": " + hint
}

// restore notes that the file again contains the configuration in force, perhaps at
// another path.
func (r *Reloader) restore(outcome schema.Outcome) {
	moved := r.View().Config.Path != outcome.Config.Path
	var frozen []string
	if moved {
		frozen = r.frozen(outcome.Config)
	}
	r.viewMu.Lock()
	rejected := r.view.Rejection != nil
	if moved {
		r.view.Config, r.view.Warnings, r.view.Frozen = outcome.Config, outcome.Problems, frozen
	}
	r.view.Rejection = nil
	generation := r.view.Generation
	r.viewMu.Unlock()
	if rejected {
		r.log.Info("configuration is again the one in force", "generation", generation)
	}
}

// frozen returns the files of a configuration whose replacement is never seen. The
// table of mounts is read once for each configuration.
func (r *Reloader) frozen(c *schema.Config) (frozen []string) {
	for _, path := range append([]string{c.Path}, c.Files...) {
		if path == "" || r.parts.Frozen == nil || !r.parts.Frozen(path) {
			continue
		}
		if full, err := filepath.Abs(path); err == nil {
			path = full
		}
		frozen = append(frozen, path)
	}
	return frozen
}
