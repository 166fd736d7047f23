package watch

import "time"

// SetSettleDelay replaces settleDelay. It is called before Run.
func (w *Watcher) SetSettleDelay(delay time.Duration) { w.settleDelay = delay }

// Compared reports whether the last comparison has seen the present state of all paths. Its
// notification has then been sent.
func (w *Watcher) Compared() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range w.paths {
		if w.fingerprints[path] != fingerprintOf(path) {
			return false
		}
	}
	return true
}
