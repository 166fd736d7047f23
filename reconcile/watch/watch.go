package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Mode is how a watcher learns of changes.
type Mode string

// The modes.
const (
	Events  Mode = "events"  // the kernel tells
	Polling Mode = "polling" // files are read again and again, as the kernel cannot tell of all that matters
)

const (
	quiet    = 50 * time.Millisecond // after the last event, so that a writer can finish
	ceiling  = time.Second           // after the first event, in a folder that is never quiet
	net      = 15 * time.Second      // between two comparisons without any event
	poll     = 2 * time.Second       // between two comparisons in mode Polling
	rearm    = 10 * time.Second      // between two attempts to get back to mode Events
	maxBytes = 2 << 20               // of a file that are compared
)

// Watcher reports that paths may have changed: their content, or the file that has
// it. Its methods are safe for concurrent use; Run is called once.
type Watcher struct {
	changed chan struct{} // holds one empty token
	nudged  chan struct{} // holds one empty token: compare now

	mu     sync.Mutex
	paths  []string
	mode   Mode
	prints map[string]print

	written map[string]bool // names of files that events told to be written; see Written
}

// print is what tells one state of a path from another: the content, and the file
// that has it, as a reader must know whether a later change is a write in place.
type print struct {
	sum   [sha256.Size]byte
	file  [2]uint64 // device and inode, behind all links; zero where files have none
	fault string    // why it cannot be read; empty if it can
}

// New makes a watcher of some paths. What they hold now is what later content is
// compared with.
func New(paths ...string) *Watcher {
	w := &Watcher{changed: make(chan struct{}, 1), nudged: make(chan struct{}, 1), mode: Events, prints: map[string]print{}, written: map[string]bool{}}
	w.Watch(paths...)
	return w
}

// Watch replaces the paths that are watched. It is called after they were read. A
// path that is new, or that differs from its last comparison, may have changed since
// then, and so gives a token once: what the reader has read may be gone again before
// the next comparison, which would find no difference.
func (w *Watcher) Watch(paths ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	prints := map[string]print{}
	for _, path := range paths {
		prints[path] = printOf(path)
		if known, ok := w.prints[path]; !ok || known != prints[path] {
			w.say()
		}
	}
	same := slices.Equal(paths, w.paths)
	w.paths, w.prints = paths, prints
	if !same {
		w.Look()
	}
}

// Changed returns a channel that gives an empty token when something may have
// changed since the last one. It carries no meaning but "look again".
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Written reports whether an event has named the file behind a path as written,
// since the last call and since the last comparison that found no change. A file that
// was written elsewhere and then renamed to the path is not. Without events it is
// false.
func (w *Watcher) Written(path string) bool {
	names := []string{filepath.Base(path)}
	if end, err := filepath.EvalSymlinks(path); err == nil {
		names = append(names, filepath.Base(end))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	written := slices.ContainsFunc(names, func(name string) bool { return w.written[name] })
	for _, name := range names {
		delete(w.written, name)
	}
	return written
}

// Look compares soon, without an event: for a signal that asks for it.
func (w *Watcher) Look() {
	select {
	case w.nudged <- struct{}{}:
	default:
	}
}

// Mode returns how changes are learnt of at present.
func (w *Watcher) Mode() Mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mode
}

// compare reads the paths and gives a token if one of them differs.
func (w *Watcher) compare() {
	w.mu.Lock()
	paths := w.paths
	w.mu.Unlock()
	now := make(map[string]print, len(paths))
	for _, path := range paths {
		now[path] = printOf(path)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	differs := false
	for path, p := range now {
		if known, ok := w.prints[path]; ok && known != p {
			w.prints[path] = p
			differs = true
		}
	}
	if !differs {
		clear(w.written)
		return
	}
	w.say()
}

func (w *Watcher) say() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// printOf reads a path. What is no regular file is not read.
func printOf(path string) print {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return print{fault: faultOf(err)}
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(file, maxBytes)); err != nil {
		return print{fault: faultOf(err)}
	}
	var p print
	copy(p.sum[:], sum.Sum(nil))
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		p.file = [2]uint64{uint64(stat.Dev), stat.Ino} // Dev is signed on macOS
	}
	return p
}

func faultOf(err error) string {
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return "not a regular file"
	case errors.Is(err, fs.ErrNotExist):
		return "not there"
	case errors.Is(err, fs.ErrPermission):
		return "not allowed"
	default:
		return "not readable"
	}
}

// Run watches until ctx ends, and then returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		notify, err := fsnotify.NewBufferedWatcher(64)
		if err == nil {
			err = w.listen(ctx, notify)
		}
		if err == nil {
			return nil
		}
		w.pollFor(ctx, rearm)
	}
	return nil
}

// pollFor compares without any help of the kernel for a while.
func (w *Watcher) pollFor(ctx context.Context, length time.Duration) {
	w.setMode(Polling)
	over := time.NewTimer(length)
	defer over.Stop()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-ticker.C:
		case <-w.nudged:
		}
		w.compare()
	}
}

func (w *Watcher) setMode(mode Mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = mode
}

// listen follows events, and closes what tells of them. It returns nil when ctx
// ends, and an error when the kernel cannot serve the watches.
func (w *Watcher) listen(ctx context.Context, notify *fsnotify.Watcher) error {
	faults := make(chan error, 1)
	go keepFirst(notify.Errors, faults)
	defer func() {
		_ = notify.Close()
		for range faults { // until keepFirst has ended
		}
	}()
	active := watches{}
	for {
		s := w.arm(notify, active)
		w.compare() // what changed before the watches were there
		mode, pause := Events, net
		if s.blind {
			mode, pause = Polling, poll
		}
		w.setMode(mode)
		if err := w.wait(ctx, notify.Events, faults, s, pause); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// keepFirst takes errors as soon as they come, because fsnotify holds a lock until
// one is taken, which whoever makes watches waits for. It keeps one at a time, and
// closes kept when there are no more.
func keepFirst(errs <-chan error, kept chan<- error) {
	defer close(kept)
	for err := range errs {
		select {
		case kept <- err:
		default:
		}
	}
}

// wait returns when it is time to compare, which is after the pause at the latest,
// or when ctx ends. An error says that the watches have ended.
func (w *Watcher) wait(ctx context.Context, events <-chan fsnotify.Event, faults <-chan error, s sight, pause time.Duration) error {
	timer := time.NewTimer(pause) // and then for the quiet after an event
	defer timer.Stop()
	var since time.Time // of the first event that counts; zero is none
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-events:
			switch {
			case !ok:
				return errors.New("the watch has ended")
			case s.counts(event.Name):
				if since.IsZero() {
					since = time.Now()
				}
				if name := filepath.Base(event.Name); event.Has(fsnotify.Write) && s.steps[name] {
					w.mu.Lock()
					w.written[name] = true
					w.mu.Unlock()
				}
				timer.Reset(min(quiet, max(0, ceiling-time.Since(since))))
			}
		case err, ok := <-faults:
			// The kernel refuses to end the watch of a folder that is moved and then
			// removed, since it has done so already.
			if !ok || !errors.Is(err, fsnotify.ErrEventOverflow) && !errors.Is(err, syscall.EINVAL) {
				return errors.Join(errors.New("the watch has failed"), err)
			}
			return nil
		case <-timer.C:
			return nil
		case <-w.nudged:
			return nil
		}
	}
}
