package runtime

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"
)

// Limits of a job's life that nobody has asked to set.
const (
	stopGrace     = 30 * time.Second // from TERM to KILL
	failGrace     = 30 * time.Second // for a runner that has just reported a failure, to end
	finishGrace   = time.Minute      // for a runner that has reported the last success, to end
	farewellLimit = 5 * time.Minute  // for the last report of a job
	removeLimit   = 2 * time.Minute  // for removing an environment, on top of its grace
	overtime      = 5 * time.Minute  // after the job's own limit, which the runner keeps

	endLimit   = time.Second      // from the end of a job's stream to its own, or it was no end
	hearLimit  = 5 * time.Second  // from a job's end to that of its stream
	wordLimit  = 10 * time.Second // between the removal of an environment and the engine's word how it ended
	firstPause = time.Second      // before a stream that broke off is taken up again; doubles
	lastPause  = 30 * time.Second // ceiling of these
)

// Causes for which a job's life is cut short.
var (
	errCancelled = errors.New("the service no longer wants it")
	errNoTime    = errors.New("there is no time left")
	errOverdue   = errors.New("it is long past its time limit")
	errLingers   = errors.New("its last step is reported, but the runner does not end")
)

// life is one job from its claim to its removal. It owns three children: its
// output, the question whether it is wanted, and the wait for its end.
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
	if !ended {
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

// attend waits for the job's end, or brings it about when ctx ends first. Ok is
// false when neither is known to have come.
func (l *life) attend(ctx context.Context, children *sync.WaitGroup) (e end, ok bool) {
	ended := make(chan end, 1)
	waiting, enough := context.WithCancel(context.WithoutCancel(ctx))
	defer enough()
	over := make(chan struct{})
	children.Go(func() {
		defer close(over)
		exit, err := l.pool.parts.Executor.Wait(waiting, l.id)
		ended <- end{exit, err}
	})
	heard := make(chan struct{})
	children.Go(func() {
		defer close(heard)
		l.follow(waiting, over)
	})

	select {
	case e = <-ended:
	case <-ctx.Done():
		l.enter(Stopping)
		l.log.Info("stopping the job", "reason", context.Cause(ctx))
		if e, ok = l.halt(ended, children); !ok {
			return e, false
		}
	}
	select { // the last words are in the stream already
	case <-heard:
	case <-time.After(hearLimit):
	}
	return e, true
}

// halt ends the environment, in order if it can be. A job that an engine does
// not end is tried again, and holds its place as it may still run; only when the
// pool has no time left is it given up, and then nothing is known of it.
func (l *life) halt(ended <-chan end, children *sync.WaitGroup) (e end, ok bool) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		removed := make(chan error, 1)
		children.Go(func() { removed <- l.remove(stopGrace) })
		select {
		case e = <-ended:
			select { // it may be about to remove what has ended
			case <-removed:
			case <-time.After(wordLimit):
			}
			return e, true
		case err := <-removed:
			switch {
			case err == nil:
				select {
				case e = <-ended:
				case <-time.After(wordLimit):
					e.err = errors.New("the engine does not say how it ended")
				}
				return e, true
			case pause == firstPause:
				l.log.Warn("the job cannot be ended; trying again", "environment", l.id, "error", err)
			}
		}
		select {
		case e = <-ended:
			return e, true
		case <-l.pool.final.Done():
			select {
			case e = <-ended:
				return e, true
			default:
				return e, false
			}
		case <-time.After(pause):
		}
	}
}

// follow reads what the runner tells of its progress. A stream that an engine
// breaks off while the job runs is taken up again, from its beginning: an engine
// may be restarted under its containers. Over is closed when the job has ended.
func (l *life) follow(ctx context.Context, over <-chan struct{}) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		last := closed(over) // then all there is to say is in the stream
		err := l.listen(ctx)
		switch {
		case last, ctx.Err() != nil, errors.Is(err, ErrNoEnvironment):
			return
		case err == nil: // the end, or what looks like it
			select {
			case <-over:
				return
			case <-ctx.Done():
				return
			case <-time.After(endLimit):
			}
		case pause == firstPause:
			l.log.Warn("follow the runner", "error", err)
		}
		select {
		case <-over:
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
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
		tuning, tuned := l.pool.settings()
		var due <-chan time.Time // never without an interval
		if tuning.StatusInterval > 0 {
			due = time.After(tuning.StatusInterval - time.Since(last))
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
