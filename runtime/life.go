package runtime

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"
)

// StopGrace is the time between TERM and KILL of a job that is stopped. Every
// other package takes it from here.
const StopGrace = 30 * time.Second

// HeartbeatLimit is the time without a heartbeat after which a service declares a
// job failed (Pulumi documentation, "Customer-managed runners"). DeclaredFailed
// states it in messages about a job that this agent can report no more.
const (
	HeartbeatLimit = 10 * time.Minute
	DeclaredFailed = "the service declares it failed after ten minutes without a heartbeat"
)

// Limits of a job's life that nobody has asked to set.
const (
	failGrace     = 30 * time.Second // for a runner that has just reported a failure, to end
	finishGrace   = time.Minute      // for a runner that has reported the last success, to end
	farewellLimit = 5 * time.Minute  // for the last report of a job
	removeLimit   = 2 * time.Minute  // for removing an environment, on top of its grace
	overtime      = 5 * time.Minute  // after the job's own limit, which the runner keeps

	yieldLimit  = 3 * time.Second // for which a runner that is asked to end lets the agent add why
	endingLimit = 2 * time.Second // for the agent to do so

	endLimit   = time.Second      // from the end of a job's stream to its own, or it was no end
	hearLimit  = 5 * time.Second  // from a job's end to that of its stream
	wordLimit  = 10 * time.Second // between the removal of an environment and the engine's word how it ended
	firstRetry = time.Second      // between two calls to an engine after a failed one; doubles
	lastRetry  = 30 * time.Second // ceiling of these
)

// Causes for which a job's life is cut short.
var (
	errCancelled = errors.New("the service no longer wants it")
	errNoTime    = errors.New("there is no time left")
	errOverdue   = errors.New("it is long past its time limit")
	errLingers   = errors.New("its last step is reported, but the runner does not end")
)

// life is one job from its claim to its removal. It owns its children: the heartbeats
// of its start, its output, its status check, and the wait for its end.
type life struct {
	pool *Pool
	log  *slog.Logger
	job  *Job
	id   string // of its environment; set before run only for an adopted job
	past bool   // its start: the runner has reported the end of step 0; guarded by the pool's lock

	adopted bool // found at the start: the service may never have known it

	since time.Time
	mu    sync.Mutex
	phase Phase
	last  Progress // what the service has accepted, as the runner told it
	why   string   // something else ended the job, as the engine puts it; empty if that is not known
	added int      // lines that the agent has added to the log of the last step

	stream streamState // of follow's goroutine
}

// run leads the job through its life. When ctx ends, the job is stopped in
// order; the farewells are said all the same. It reports whether the job's instance
// is gone, as far as is known.
func (l *life) run(ctx context.Context) (gone bool) {
	ctx, stop := context.WithCancelCause(ctx)
	var children sync.WaitGroup
	defer func() {
		stop(nil)
		children.Wait()
	}()

	children.Go(func() { l.ask(ctx, stop) })
	if l.id == "" {
		id, err := l.start(ctx, &children)
		if err != nil {
			l.startEnded(ctx, err)
			return true
		}
		l.id = id
	}
	l.enter(Started)
	if limit := l.job.Definition.Timeout; limit > 0 { // which the runner keeps, from its own start
		overdue := time.AfterFunc(min(limit, math.MaxInt64-overtime)+overtime, func() { stop(errOverdue) })
		defer overdue.Stop()
	}

	e, ended := l.attend(ctx, &children)
	return l.finish(ctx, e, ended)
}

// finish reports how the job ended, and removes its instance unless the job goes on.
// It reports whether the instance is gone, as far as is known.
func (l *life) finish(ctx context.Context, e end, ended bool) (gone bool) {
	switch {
	case !ended && l.isLeft(ctx):
		l.log.Info("the agent stops and the job goes on; the next agent adopts it", "environment", l.id)
		return false
	case !ended:
		l.log.Error("the job could not be ended in time and is left running; the next agent attends it", "environment", l.id)
		return false
	}
	l.enter(Done)
	l.runnerEnded(ctx, e)
	l.close(ctx, e.exit, e.err)
	err := l.remove(0)
	if err != nil { // a later sweep finds it by its labels
		l.log.Warn("remove the job's environment", "environment", l.id, "error", err)
	}
	return err == nil
}

// end is how a job's environment ended.
type end struct {
	exit Exit
	err  error
}

// attend blocks until the job has ended. When ctx ends first, it stops the job, or
// leaves it (isLeft). Ok is false when the job may still run.
func (l *life) attend(ctx context.Context, children *sync.WaitGroup) (_ end, ok bool) {
	// Wait for the end and follow the output, each in its own goroutine. The first
	// writes e, which nothing else reads before over is closed.
	var e end
	over, followed := make(chan struct{}), make(chan struct{})
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	children.Go(func() {
		defer close(over)
		l.retryEngine(waiting, nil, "cannot wait for the job's end; trying again", func() (done bool, err error) {
			e.exit, e.err = l.pool.parts.Executor.Wait(waiting, l.id)
			return e.err == nil || errors.Is(e.err, ErrNoEnvironment), e.err
		})
	})
	children.Go(func() {
		defer close(followed)
		l.follow(waiting, over)
	})

	select {
	case <-over:
	case <-ctx.Done():
		if l.isLeft(ctx) && !closed(over) {
			return end{}, false
		}
		l.enter(Stopping)
		l.log.Info("stopping the job", "reason", context.Cause(ctx))
		if !l.halt(over, children) {
			return end{}, false
		}
	}

	// The stream holds the last lines already.
	select {
	case <-followed:
	case <-time.After(hearLimit):
	}
	if !closed(over) {
		return end{err: errors.New("the engine does not say how it ended")}, true
	}
	return e, true
}

// isLeft reports whether the job is left running when ctx has ended: the pool has to
// stop, and the executor's instances are adopted by another agent. A job that must end
// for a reason of its own is stopped all the same.
func (l *life) isLeft(ctx context.Context) bool {
	adopter, ok := l.pool.parts.Executor.(Adopter)
	if !ok || !adopter.LeavesJobs() {
		return false
	}
	cause := context.Cause(ctx)
	return !errors.Is(cause, errCancelled) && !errors.Is(cause, errOverdue) && !errors.Is(cause, errLingers)
}

// halt ends the environment, in order if it can be, and reports whether it is known
// to have ended. A job that an engine does not end is tried again, and keeps its
// slot as it may still run, until the pool has no time left.
func (l *life) halt(over <-chan struct{}, children *sync.WaitGroup) (ended bool) {
	l.retryEngine(l.pool.final, over, "the job cannot be ended; trying again", func() (done bool, err error) {
		if closed(over) {
			return true, nil
		}
		removed := make(chan error, 1)
		children.Go(func() { removed <- l.remove(StopGrace) })
		select {
		case <-over:
			select { // it may be about to remove what has ended
			case <-removed:
			case <-time.After(wordLimit):
			}
		case err := <-removed:
			if err != nil {
				return false, err
			}
			ended = true
			select {
			case <-over:
			case <-time.After(wordLimit):
			}
		}
		return true, nil
	})
	return ended || closed(over)
}

// follow reads the runner's progress until the job has ended. A stream that breaks
// off earlier is read again from its beginning. Over is closed when the job has
// ended.
func (l *life) follow(ctx context.Context, over <-chan struct{}) {
	l.retryEngine(ctx, over, "cannot follow the runner; trying again", func() (done bool, err error) {
		last := closed(over) // then the stream is complete
		err = l.listen(ctx)
		switch {
		case last, ctx.Err() != nil, errors.Is(err, ErrNoEnvironment):
			return true, nil
		case err == nil: // the end, or a stream that broke off without an error
			return l.endsSoon(ctx, over), nil
		}
		return false, err
	})
}

// endsSoon reports whether the job ends within endLimit.
func (l *life) endsSoon(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return true
	case <-time.After(endLimit):
		return false
	}
}

// retryEngine makes a call to the engine again and again until it is done or ctx
// ends: an engine may be restarted while its containers run. The wait between two
// calls doubles from firstRetry to lastRetry; wake ends it early. The first error is
// logged with the message.
func (l *life) retryEngine(
	ctx context.Context, wake <-chan struct{}, message string, call func() (done bool, err error),
) {
	logged := false
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		done, err := call()
		switch {
		case done, ctx.Err() != nil:
			return
		case err != nil && !logged:
			logged = true
			l.warn(message, err)
		}
		awake(ctx, wake, wait)
		if ctx.Err() != nil {
			return
		}
	}
}

// awake blocks until the wait is over, or wake or ctx ends it.
func awake(ctx context.Context, wake <-chan struct{}, wait time.Duration) {
	select {
	case <-wake:
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// warn logs an error of the engine.
func (l *life) warn(message string, err error) {
	l.log.Warn(message, "environment", l.id, "error", err)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ask asks, every status interval, whether the job is still wanted, and stops
// it when it is not. Doubt never stops a job. A new interval counts from the last
// answer. Gone stops an adopted job only after another verdict about it: this
// pool's token may be of a service or pool that never knew the job.
func (l *life) ask(ctx context.Context, stop context.CancelCauseFunc) {
	known := !l.adopted
	patience := never() // with a runner that is about to end by itself
	last := time.Now()
	for {
		interval, tuned := l.pool.statusInterval()
		var due <-chan time.Time // never without an interval
		if interval > 0 {
			due = time.After(interval - time.Since(last))
		}
		select {
		case <-ctx.Done():
			return
		case <-patience:
			stop(errLingers)
			return
		case <-tuned:
			continue
		case <-due:
		}
		verdict, err := l.pool.parts.Cloud.Wanted(ctx, l.job)
		last = time.Now()
		if err != nil {
			l.log.Debug("ask whether the job is still wanted", "error", err)
			continue
		}
		var grace time.Duration
		switch {
		case verdict == Gone && !known:
			l.log.Debug("service does not know the adopted job; the job carries on")
		case verdict == Finishing:
			grace = finishGrace
		case verdict == Ended && l.told() == Failed:
			grace = failGrace
		case verdict == Ended, verdict == Gone:
			stop(errCancelled)
			return
		}
		if verdict != Gone && verdict != Unanswered {
			known = true
			l.pool.answeredNow() // the call carries the pool's token
		}
		if grace > 0 && patience == nil {
			patience = time.After(grace)
		}
	}
}

// never is a channel on which nothing comes.
func never() <-chan time.Time { return nil }

// remove removes the environment.
func (l *life) remove(grace time.Duration) error {
	farewell, cancel := context.WithTimeout(l.pool.final, grace+removeLimit)
	defer cancel()
	return l.pool.parts.Executor.Remove(farewell, l.id, grace)
}

func (l *life) enter(phase Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}

func (l *life) seen() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *life) told() Status { return l.seen().Status }

func (l *life) state() JobState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return JobState{ID: l.job.ID, Subject: l.job.Subject, Phase: l.phase, Since: l.since}
}
