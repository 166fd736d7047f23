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

// Mode is how a Watcher detects changes.
type Mode string

// The modes.
const (
	Events  Mode = "events"  // by events of the kernel
	Polling Mode = "polling" // by frequent comparisons, because the kernel cannot watch all directories
)

const (
	settleDelay         = 50 * time.Millisecond // after the last event, so that a writer can finish
	maxSettleDelay      = time.Second           // after the first event, in a directory with constant events
	compareInterval     = 15 * time.Second      // between two comparisons without an event
	pollInterval        = 2 * time.Second       // between two comparisons in mode Polling
	eventsRetryInterval = 10 * time.Second      // between two attempts to return to mode Events
	maxBytes            = 2 << 20               // number of bytes of a file that are compared

	// writtenMemory is how long Written remembers a write. It is longer than the time from an
	// event to the read of the file by the caller.
	writtenMemory = 5 * time.Second
)

// Watcher reports that a path may have changed: the content of its file, or the file to which
// it leads. Its methods are safe for concurrent use; Run is called once.
type Watcher struct {
	changed     chan struct{} // holds one notification
	compareNow  chan struct{} // holds one request for a comparison
	settleDelay time.Duration // tests replace it

	mu           sync.Mutex
	paths        []string
	mode         Mode
	fingerprints map[string]fingerprint // by path

	written map[string]time.Time // last writes, by name of the file; see Written
}

// fingerprint identifies a state of a path: the content, and the file that contains it. So the
// replacement of a file by another one with the same content is a change too: the caller must
// read the new file, because it compares the identity of the file at the next change.
type fingerprint struct {
	sum       [sha256.Size]byte
	file      [2]uint64 // device and inode, behind all links; zero on systems without them
	readError string    // why the file cannot be read; empty if it can
}

// New returns a Watcher for paths. If there are any, the first notification is sent at
// once. Later content is compared with the present content.
func New(paths ...string) *Watcher {
	w := &Watcher{
		changed: make(chan struct{}, 1), compareNow: make(chan struct{}, 1), mode: Events, settleDelay: settleDelay,
		fingerprints: map[string]fingerprint{}, written: map[string]time.Time{},
	}
	w.Watch(paths...)
	return w
}

// Watch replaces the watched paths, which the caller has read before. It sends a
// notification if a path is new or its fingerprint differs from the last comparison, because
// the file may have changed between the caller's read and this call. Later comparisons use the
// present fingerprint.
func (w *Watcher) Watch(paths ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	fingerprints := map[string]fingerprint{}
	for _, path := range paths {
		fingerprints[path] = fingerprintOf(path)
		if known, ok := w.fingerprints[path]; !ok || known != fingerprints[path] {
			w.written[filepath.Base(path)] = time.Now() // perhaps: no event shows how it changed
			send(w.changed)
		}
	}
	same := slices.Equal(paths, w.paths)
	w.paths, w.fingerprints = paths, fingerprints
	if !same {
		w.Check()
	}
}

// Changed returns a channel that receives a notification when a file may have changed
// since the last notification.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Written reports whether the file behind path may have been written in place since the last
// call and within the last writtenMemory. It clears the record of writes. The caller has read
// the file before.
//
// Written returns true after a write event with the base name of path or of the file behind
// path, and after a change that no event has shown, because that change may be a write. It
// returns false if the events show no write, as after a rename of a file to path.
func (w *Watcher) Written(path string) bool {
	names := []string{filepath.Base(path)}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		names = append(names, filepath.Base(resolved))
	}
	now := fingerprintOf(path)
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.fingerprints[path]
	written := !ok || known != now // the events of this change are not processed yet
	for _, name := range names {
		at, ok := w.written[name]
		written = written || ok && time.Since(at) < writtenMemory
		delete(w.written, name)
	}
	return written
}

// Check requests a comparison now, without an event.
func (w *Watcher) Check() { send(w.compareNow) }

// Mode returns how changes are detected at present.
func (w *Watcher) Mode() Mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mode
}

// compare reads the paths, and sends a notification if the fingerprint of a path has changed.
// Seen is whether the kernel has sent the events of the change; without them the file counts
// as written.
func (w *Watcher) compare(seen bool) {
	w.mu.Lock()
	paths := w.paths
	w.mu.Unlock()
	now := make(map[string]fingerprint, len(paths))
	for _, path := range paths {
		now[path] = fingerprintOf(path)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	differs := false
	for path, f := range now {
		if known, ok := w.fingerprints[path]; ok && known != f {
			w.fingerprints[path] = f
			differs = true
			if !seen {
				w.written[filepath.Base(path)] = time.Now()
			}
		}
	}
	if differs {
		send(w.changed)
	}
}

// send sends a notification or request, unless the last one has not been received yet.
func send(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// fingerprintOf reads a path. A file that is not regular is not read.
func fingerprintOf(path string) fingerprint {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return fingerprint{readError: readErrorOf(err)}
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(file, maxBytes)); err != nil {
		return fingerprint{readError: readErrorOf(err)}
	}
	var f fingerprint
	copy(f.sum[:], sum.Sum(nil))
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.file = [2]uint64{uint64(stat.Dev), stat.Ino} // Dev is signed on macOS
	}
	return f
}

func readErrorOf(err error) string {
	switch {
	case errors.Is(err, secret.ErrNotRegular):
		return "not a regular file"
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	default:
		return "cannot be read"
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
		w.pollFor(ctx, eventsRetryInterval)
	}
	return nil
}

// pollFor sets mode Polling, and compares at intervals for some time.
func (w *Watcher) pollFor(ctx context.Context, length time.Duration) {
	w.setMode(Polling)
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.compareNow:
		}
		w.compare(false)
	}
}

func (w *Watcher) setMode(mode Mode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = mode
}

// listen compares after events, until ctx ends. It closes notify before it returns. The
// error is not nil if the kernel cannot serve the watches.
func (w *Watcher) listen(ctx context.Context, notify *fsnotify.Watcher) error {
	watchErrors := make(chan error, 1)
	go bufferErrors(notify.Errors, watchErrors)
	defer func() {
		_ = notify.Close()
		for range watchErrors { // until bufferErrors has ended
		}
	}()
	active := watches{}
	for seen := false; ; { // the first comparison finds changes from before the watches
		set := w.updateWatches(notify, active)
		w.compare(seen)
		mode, interval := Events, compareInterval
		if set.incomplete {
			mode, interval = Polling, pollInterval
		}
		w.setMode(mode)
		var err error
		if seen, err = w.wait(ctx, notify.Events, watchErrors, set, interval); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// bufferErrors receives errors as soon as they come, because fsnotify holds a lock until
// an error is received, and adding a watch needs that lock. It keeps one error at a
// time, and closes buffer when there are no more.
func bufferErrors(errs <-chan error, buffer chan<- error) {
	defer close(buffer)
	for err := range errs {
		select {
		case buffer <- err:
		default:
		}
	}
}

// wait blocks until the next comparison is due or ctx ends. A comparison is due after an event,
// an overflow or a request, and without these after the interval. Seen is true
// after an event: the kernel has sent the events of a change that the comparison may find. The
// error is not nil if the watches have ended.
func (w *Watcher) wait(
	ctx context.Context, events <-chan fsnotify.Event, watchErrors <-chan error, set watchSet, interval time.Duration,
) (seen bool, err error) {
	timer := time.NewTimer(interval) // after an event: settleDelay
	defer timer.Stop()
	var first time.Time // of the first event that matches; zero before it
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case event, ok := <-events:
			switch {
			case !ok:
				return false, errors.New("watch ended")
			case set.matches(event.Name):
				if first.IsZero() {
					first = time.Now()
				}
				if name := filepath.Base(event.Name); event.Has(fsnotify.Write) && set.names[name] {
					w.mu.Lock()
					w.written[name] = time.Now()
					w.mu.Unlock()
				}
				timer.Reset(min(w.settleDelay, max(0, maxSettleDelay-time.Since(first))))
			}
		case err, ok := <-watchErrors:
			// After an overflow the watcher compares. EINVAL is harmless: the kernel has
			// already removed the watch of a directory that was moved and then deleted.
			if !ok || !errors.Is(err, fsnotify.ErrEventOverflow) && !errors.Is(err, syscall.EINVAL) {
				return false, errors.Join(errors.New("watch failed"), err)
			}
			return false, nil
		case <-timer.C:
			return !first.IsZero(), nil
		case <-w.compareNow:
			return !first.IsZero(), nil
		}
	}
}
