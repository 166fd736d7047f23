package reconcile

import "maps"

// Pause makes the pools with a name claim no jobs until [Loop.Resume], also the pools of later
// generations. Running jobs continue, and a poll that is under way is not aborted. Pause
// reports whether the name was not paused before. A pool with this name need not exist.
func (l *Loop) Pause(name string) (changed bool) {
	if changed = l.setPaused(name, true); changed {
		l.log.Warn("pool paused by cmwa pause: it claims no jobs until cmwa resume", "pool", name)
	}
	return changed
}

// Resume ends the pause of [Loop.Pause]. It reports whether the name was paused.
func (l *Loop) Resume(name string) (changed bool) {
	if changed = l.setPaused(name, false); changed {
		l.log.Info("pool resumed by cmwa resume", "pool", name)
	}
	return changed
}

func (l *Loop) setPaused(name string, paused bool) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.desired.Paused[name] == paused {
		return false
	}
	names := maps.Clone(l.desired.Paused) // a turn may be reading the old map
	if names == nil {
		names = map[string]bool{}
	}
	if paused {
		names[name] = true
	} else {
		delete(names, name)
	}
	l.desired.Paused = names
	l.wake()
	return true
}

// StopJob stops a job, which is reported as failed. It returns at once, and reports whether a pool has the job.
func (l *Loop) StopJob(id string) (found bool) {
	if found = l.set.stopJob(id); found {
		l.log.Warn("job stopped by cmwa jobs stop", "job", id)
	}
	return found
}
