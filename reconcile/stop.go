package reconcile

import (
	"context"
	"errors"
	"time"
)

// Reasons for which jobs are stopped. The log of each job contains the reason.
var (
	errShutdownTimeout = errors.New("the agent is stopping, and shutdown_timeout has passed")
	errSecondSignal    = errors.New("the agent is stopping, after a second signal")
)

// shutdown is the stop of all pools. Loop.mu guards it. Run alone sets Loop.stop, so Run also
// compares it with nil without the lock.
type shutdown struct {
	started   time.Time
	cancelled bool // running jobs are being stopped
	forced    bool // the cancel grace period of running jobs is shortened
	ignored   bool // a change was not applied, which was logged
}

// beginStop drains every pool, and cancels a change of the process that is in preparation.
func (l *Loop) beginStop() {
	l.mu.Lock()
	l.stop = &shutdown{started: time.Now()}
	limit := l.desired.Process.ShutdownTimeout
	l.mu.Unlock()
	if jobs := l.running(); jobs > 0 {
		l.log.Info("stopping: no new jobs, running jobs may finish; a second signal stops them, "+
			"a third ends the agent at once", "jobs", jobs, "limit", limit)
	}
	if l.change != nil {
		l.change.cancel()
	}
	l.set.each((*member).drain)
}

// stopTurn stops running jobs if forceStop has ended or the shutdown timeout has passed.
// If forceStop has ended, the jobs have a shorter cancel grace period. The returned channel
// receives when the timeout passes; it is nil if jobs are being stopped.
func (l *Loop) stopTurn(forceStop context.Context) <-chan time.Time {
	l.mu.Lock()
	left := time.Until(l.stopAt())
	before := l.stop.cancelled
	l.stop.cancelled = before || forceStop.Err() != nil || left <= 0
	cancelled, limit := l.stop.cancelled, l.desired.Process.ShutdownTimeout
	force := forceStop.Err() != nil && !l.stop.forced
	l.stop.forced = l.stop.forced || force
	l.mu.Unlock()

	if force {
		l.set.each((*member).forceStop)
	}
	if !cancelled {
		return time.After(left)
	}
	if before {
		if force {
			l.log.Info("second signal: stopping running jobs with a shorter cancel_grace_period", "jobs", l.running())
		}
		return nil
	}
	reason, cause := "second signal", errSecondSignal
	if left <= 0 {
		reason, cause = "shutdown_timeout", errShutdownTimeout
	}
	if jobs := l.running(); jobs > 0 {
		l.log.Info("stopping running jobs, except those that another agent adopts; "+
			"a third signal ends the agent at once, and its next start adopts the jobs that still run",
			"jobs", jobs, "reason", reason, "limit", limit)
	}
	l.set.each(func(m *member) { m.cancel(cause) }) // no effect on a member that has stopped
	return nil
}

// stopAt returns the time at which running jobs are stopped. The caller holds the lock.
func (l *Loop) stopAt() time.Time { return l.stop.started.Add(l.desired.Process.ShutdownTimeout) }

// wantWhileStopping replaces the shutdown timeout. It logs once that other changes are not
// applied. The caller holds the lock.
func (l *Loop) wantWhileStopping(desired Desired) {
	process := &l.desired.Process
	if limit := desired.Process.ShutdownTimeout; limit != process.ShutdownTimeout {
		process.ShutdownTimeout = limit
		if l.stop.cancelled {
			l.log.Info("shutdown_timeout changed too late: running jobs are being stopped already", "limit", limit)
		} else {
			l.log.Info("shutdown_timeout changed: it counts from the first signal",
				"limit", limit, "left", max(0, time.Until(l.stopAt())).Round(time.Second))
		}
	}

	same := desired.Process == *process && len(desired.Pools) == len(l.desired.Pools)
	for key, spec := range desired.Pools {
		same = same && equalSpec(spec, l.desired.Pools[key])
	}
	if !same && !l.stop.ignored {
		l.stop.ignored = true
		l.log.Warn("configuration changed while the agent is stopping: " +
			"only shutdown_timeout is applied now, everything else at the next start")
	}
}
