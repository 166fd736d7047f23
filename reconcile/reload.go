package reconcile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// Reloader reads a configuration file, checks it, and delivers the desired state that the
// file describes. After a rejected file the previous generation stays in force.
// [Reloader.Reload] may be called at any time and any number of times. All methods are safe
// for concurrent use.
type Reloader struct {
	parts ReloaderParts
	log   *slog.Logger

	mu           sync.Mutex        // held by one reload at a time; guards this group
	want         func(Desired)     // see Deliver; nil before that
	lastDigest   string            // of the last result, accepted or rejected
	lastProblems position.Problems // of that result
	lastErr      error             // of that result
	lastPath     string            // path of the file of that result
	lastRead     fileState         // of the last reload
	lastFiles    []string          // that the configuration named at the last reload
	hadContent   bool              // whether a file with content was read
	emptySince   time.Time         // since when the file is empty or missing; zero if it has content
	writtenAt    time.Time         // last write of the file, or of one that it names, in place; zero if there is none
	settling     bool              // whether a change waits until the file is unchanged for settleTime

	stateMu sync.Mutex
	state   ConfigState
	started []schema.Setting // with the effect Restart, of the first configuration
}

// ReloaderParts are the functions that a Reloader uses.
type ReloaderParts struct {
	Find  func() (schema.Source, error) // reads the file
	Watch func(paths ...string)         // watches these files from now on
	Log   *slog.Logger

	// Written reports whether the file behind a path was written in place since the last
	// call. It is nil if that is unknown.
	Written func(path string) bool

	// Frozen reports whether a replacement of the file behind a path cannot be detected,
	// because of how the file is mounted. It is nil if no file is frozen.
	Frozen func(path string) bool
}

// ConfigState is a snapshot of the state of a Reloader.
type ConfigState struct {
	Config     *schema.Config    // last accepted; nil before the first one
	Warnings   position.Problems // of Config
	Frozen     []string          // files of Config whose replacement cannot be detected, by absolute path
	Generation uint64            // of Config, from 1
	AcceptedAt time.Time
	Accepted   uint64     // number of accepted reloads, the first load included
	Rejected   uint64     // number of rejected reloads
	RejectedAt time.Time  // time of the last one, even if the file was corrected since
	Rejection  *Rejection // of the present file; nil if the file is in force
	LastReload []Reload   // changes of the last accepted reload
	Restart    []string   // keys of Config that take effect only when the agent is restarted
	Seconds    float64    // duration of the last accepted load, check and comparison
}

// Rejection describes a file that is not used.
type Rejection struct {
	At       time.Time
	Digest   string            // of the rejected configuration; empty if the file could not be read
	Problems position.Problems // the reasons; empty if Reason is set
	Reason   string
}

// NewReloader returns a Reloader that has read nothing.
func NewReloader(parts ReloaderParts) *Reloader {
	return &Reloader{parts: parts, log: parts.Log.With("component", "config")}
}

// State returns a snapshot.
func (r *Reloader) State() ConfigState {
	r.stateMu.Lock()
	defer r.stateMu.Unlock()
	return r.state
}

// Deliver calls want with the desired state of the accepted configuration, if any. Reload then
// calls want with that of each later generation, in order. Deliver is called once.
func (r *Reloader) Deliver(want func(Desired)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want = want
	if state := r.State(); state.Config != nil {
		want(Want(state.Config, state.Generation))
	}
}

// Reload reads the configuration and, if it is valid and new, makes it the next
// generation. It returns the error of a rejected file; the previous generation then
// stays in force. Only the caller of the first Reload needs the error: later
// errors are logged and part of the state.
//
//  1. A file that cannot be read is rejected, unless step 2 applies.
//  2. A file that had content and is now empty or missing is probably being rewritten: wait
//     for rewriteGrace. Then an empty or missing file is rejected, and a file at a later search
//     path is used.
//  3. A result that equals the last one changes nothing.
//  4. A change that moves pools, credentials or the listener waits until a file that
//     is written in place, or a file that it names, has been unchanged for settleTime. Later changes of the file
//     wait, too, and so does a file with errors, because a part of it may still be missing.
//  5. A configuration that is already in force only ends a rejection.
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
		r.lastRead = fileState{}
	} else {
		r.recordRead(source, now)
	}

	// 2. The file had content and is now empty or missing: give the writer time. A file at a
	// later search path is used only after that time, too.
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

	// 3. Compare with the last result.
	moved := source.Path != r.lastPath
	r.lastPath = source.Path
	result := schema.Evaluate(source)
	r.recordFiles(result.Files, now)
	r.parts.Watch(slices.Concat(source.Before, []string{source.Path}, result.Files)...)
	if !moved && result.Digest == r.lastDigest && slices.Equal(result.Problems, r.lastProblems) {
		return r.lastErr
	}

	// 4. Wait for a file that is being written in place.
	if r.mustSettle(result, now, wasSettling) {
		if r.settling = true; !wasSettling {
			r.log.Debug("configuration file is being written: change waits", "unchanged_for", settleTime)
		}
		return nil
	}
	r.lastDigest, r.lastProblems = result.Digest, result.Problems
	r.lastErr = r.judge(result, now)
	return r.lastErr
}

// judge decides on a new result: steps 5 to 7 of [Reloader.Reload].
func (r *Reloader) judge(result schema.LoadResult, started time.Time) error {
	state := r.State()

	// 5. End a rejection if the configuration is already in force.
	if state.Config != nil && state.Config.Digest == result.Digest && result.Config != nil {
		r.restore(result)
		return nil
	}

	// 6. Reject errors.
	if err := result.Problems.Err(); err != nil {
		return r.reject(Rejection{At: started, Digest: result.Digest, Problems: result.Problems}, err)
	}

	// 7. Accept the next generation.
	r.accept(result, state.Generation+1, started)
	if r.want != nil {
		r.want(Want(result.Config, state.Generation+1))
	}
	return nil
}

// Check calls [Reloader.Reload] on request. It also logs that nothing has changed.
func (r *Reloader) Check() error {
	before := r.State()
	err := r.Reload()
	after, waits := r.State(), r.waits()
	switch {
	case after.Generation != before.Generation, after.Rejected != before.Rejected,
		(after.Rejection == nil) != (before.Rejection == nil):
		// Reload has logged it.
	case waits:
		r.log.Info("configuration checked: file is being written, change waits", "generation", after.Generation)
	case after.Rejection != nil:
		r.log.Warn("configuration checked: file is still rejected, no change",
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

// RecheckAfter returns the time after which Reload must be called again even if no file
// changes, or 0 if that is not necessary.
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
	Asked       <-chan os.Signal // requests of the operator for a check
	BeforeCheck func()           // called before a requested check
	AfterCheck  func()           // called after a requested check
}

// Follow reloads at once and after each trigger, until ctx ends. It logs one warning for
// each file whose replacement cannot be detected.
func (r *Reloader) Follow(ctx context.Context, on Triggers) error {
	warned := map[string]bool{}
	_ = r.Reload() // logs its error
	for {
		// Warn of frozen files.
		for _, path := range r.State().Frozen {
			if !warned[path] {
				r.log.Warn("cannot detect a replacement of this file: it is mounted by itself, or with subPath; "+
					"mount the directory that contains it", "file", path)
			}
			warned[path] = true
		}

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
func (r *Reloader) accept(result schema.LoadResult, generation uint64, started time.Time) {
	frozen := r.frozen(result.Config)
	r.stateMu.Lock()
	before, known := r.state.Config, r.state.Warnings
	var reloads []Reload
	if before != nil {
		reloads = Preview(before, result.Config)
	}
	r.state.Config, r.state.Warnings, r.state.Frozen = result.Config, result.Problems, frozen
	r.state.Generation, r.state.AcceptedAt = generation, time.Now()
	r.state.Accepted++
	r.state.Rejection, r.state.LastReload = nil, reloads
	if before == nil {
		r.started = restartSettings(result.Config)
	}
	r.state.Restart = changedKeys(r.started, restartSettings(result.Config))
	r.state.Seconds = time.Since(started).Seconds()
	r.stateMu.Unlock()

	for _, warning := range result.Problems {
		if !slices.Contains(known, warning) {
			r.log.Warn(inLine(warning))
		}
	}
	if before == nil {
		return
	}
	movedTo := ""
	if path := result.Config.Path; path != before.Path {
		movedTo = path
	}
	r.logReload(generation, movedTo, reloads)
}

// reject records that the file is not used. It logs a new reason once, but not before a first
// configuration is accepted.
func (r *Reloader) reject(rejection Rejection, err error) error {
	r.stateMu.Lock()
	first := r.state.Config == nil
	was := r.state.Rejection
	known := was != nil && was.Reason == rejection.Reason && was.Digest == rejection.Digest &&
		slices.Equal(was.Problems, rejection.Problems)
	if !known {
		r.state.Rejected++
		r.state.Rejection, r.state.RejectedAt = &rejection, rejection.At
	}
	generation := r.state.Generation
	r.stateMu.Unlock()
	if first || known {
		return err // the caller of the first Reload reports it
	}
	const message = "configuration rejected: previous generation stays in force"
	if len(rejection.Problems) == 0 {
		r.log.Error(message, "generation", generation, "problem", rejection.Reason)
	}
	for _, problem := range rejection.Problems.Errors() {
		r.log.Error(message, "generation", generation, "problem", inLine(problem))
	}
	return err
}

// restore records that the file contains the configuration in force again. The file may have
// another path now.
func (r *Reloader) restore(result schema.LoadResult) {
	moved := r.State().Config.Path != result.Config.Path
	var frozen []string
	if moved {
		frozen = r.frozen(result.Config)
	}
	r.stateMu.Lock()
	rejected := r.state.Rejection != nil
	if moved {
		r.state.Config, r.state.Warnings, r.state.Frozen = result.Config, result.Problems, frozen
	}
	r.state.Rejection = nil
	generation := r.state.Generation
	r.stateMu.Unlock()
	if rejected {
		r.log.Info("configuration file is valid again, no change", "generation", generation)
	}
}

// frozen returns the files of a configuration whose replacement cannot be detected. The
// table of mounts is read once for each configuration.
func (r *Reloader) frozen(c *schema.Config) (frozen []string) {
	for _, path := range c.Paths() {
		if r.parts.Frozen != nil && r.parts.Frozen(path) {
			frozen = append(frozen, path)
		}
	}
	return frozen
}
