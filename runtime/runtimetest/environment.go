package runtimetest

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// environment is one job in a fake Executor. What it is at a given time follows
// from its script, its start and what was done to it, so nothing runs behind
// it: whoever wants to see it change waits on a timer of his own.
type environment struct {
	job     runtime.Job
	script  Script
	started time.Time
	beats   []Beat
	faults  []error // guarded by the Executor's lock

	mu      sync.Mutex
	ends    time.Time // far away for a job that does not end by itself
	exit    runtime.Exit
	asked   bool
	changed chan struct{} // closed and replaced when ends has changed

	waitErrors []error // still to come
}

func newEnvironment(job runtime.Job, script Script, started time.Time) *environment {
	return &environment{
		job:     job,
		script:  script,
		started: started,
		beats:   beats(job, script),
		faults:  script.RemoveErrors,
		ends:    after(started, script.Running),
		exit:    script.Exit,
		changed: make(chan struct{}),

		waitErrors: script.WaitErrors,
	}
}

// beats is the progress that a script has, or the one that fits its exit.
func beats(job runtime.Job, script Script) []Beat {
	if script.Mute || script.Progress != nil {
		return script.Progress
	}
	all := []Beat{
		{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
		{Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
		{Progress: runtime.Progress{Step: 1, Lines: 2}},
	}
	switch script.Exit.Code {
	case runtime.CodeSucceeded:
		last := max(1, job.Definition.Steps-1)
		all = append(all, Beat{After: script.Running, Progress: runtime.Progress{Step: last, Lines: 2, Status: runtime.Succeeded}})
	case runtime.CodeFailed:
		all = append(all, Beat{After: script.Running, Progress: runtime.Progress{Step: 1, Lines: 2, Status: runtime.Failed}})
	}
	return all
}

// after adds without running over.
func after(start time.Time, span time.Duration) time.Time {
	const far = 100 * 365 * 24 * time.Hour
	return start.Add(min(span, far))
}

// end returns when the environment ends, as far as is known now, and a channel
// that tells when that has changed.
func (v *environment) end() (time.Time, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ends, v.changed
}

// term asks it to end, and says whether it was the first to ask while it ran.
func (v *environment) term() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.asked || !v.ends.After(now) {
		return false
	}
	v.asked = true
	if ends := after(now, v.script.Ending); ends.Before(v.ends) {
		v.move(ends, v.script.OnTerm)
	}
	return true
}

// kill ends it, and says whether it was running.
func (v *environment) kill() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if !v.ends.After(now) {
		return false
	}
	v.move(now, runtime.Exit{Code: 137, Reason: "killed"})
	return true
}

func (v *environment) move(ends time.Time, exit runtime.Exit) {
	v.ends, v.exit = ends, exit
	close(v.changed)
	v.changed = make(chan struct{})
}

// nextWaitError returns the next of the script's WaitErrors, nil after the last.
func (v *environment) nextWaitError() (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.waitErrors) > 0 {
		err, v.waitErrors = v.waitErrors[0], v.waitErrors[1:]
	}
	return err
}

// wait blocks until it has ended, or ctx.
func (v *environment) wait(ctx context.Context) (runtime.Exit, error) {
	for {
		ends, changed := v.end()
		left := time.Until(ends)
		if left <= 0 {
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.exit, nil
		}
		if err := pauseUntil(ctx, left, changed); err != nil {
			return runtime.Exit{}, err
		}
	}
}

// stream is the progress of an environment, line by line as its time comes.
type stream struct {
	ctx    context.Context // of Follow: it is the life of the stream
	env    *environment
	opened time.Time
	next   int       // of the beats
	rest   []byte    // of the line that is being read
	raw    io.Reader // output of a beat that is being read; nil is none
	once   sync.Once
	closed chan struct{}
}

// Read blocks until there is something to read.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.raw != nil {
			n, err := s.raw.Read(p)
			if err != nil { // the end of this beat
				s.raw = nil
			}
			if n > 0 {
				return n, nil
			}
		}
		select {
		case <-s.closed:
			return 0, io.ErrClosedPipe
		default:
		}
		if s.ctx.Err() != nil {
			return 0, context.Cause(s.ctx)
		}
		ends, changed := s.env.end()
		now, due := time.Now(), ends
		breaks := s.breaks()
		if !breaks.After(now) {
			if s.env.script.BreakErr != nil {
				return 0, s.env.script.BreakErr
			}
			return 0, io.EOF
		}
		if s.next < len(s.env.beats) {
			due = after(s.env.started, s.env.beats[s.next].After)
			if !due.After(now) && !due.After(ends) {
				if raw := s.env.beats[s.next].Raw; raw != nil {
					s.raw = raw()
					s.next++
					continue
				}
				line, err := json.Marshal(s.env.beats[s.next].Progress)
				if err != nil {
					return 0, err
				}
				s.rest = append(line, '\n')
				s.next++
				break
			}
		}
		if !ends.After(now) {
			return 0, io.EOF
		}
		if ends.Before(due) {
			due = ends
		}
		if breaks.Before(due) {
			due = breaks
		}
		timer := time.NewTimer(due.Sub(now))
		select {
		case <-timer.C:
		case <-changed:
		case <-s.closed:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// breaks is when the stream breaks off.
func (s *stream) breaks() time.Time {
	for _, span := range s.env.script.Breaks {
		if at := after(s.env.started, span); at.After(s.opened) {
			return at
		}
	}
	return after(s.env.started, Forever)
}

// Close ends a Read that is under way.
func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// pause blocks for a time, or until ctx has ended.
func pause(ctx context.Context, span time.Duration) error { return pauseUntil(ctx, span, nil) }

func pauseUntil(ctx context.Context, span time.Duration, sooner <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if span <= 0 {
		return nil
	}
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-sooner:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
