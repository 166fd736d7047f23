package runtimetest

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// instance is one job in a fake Executor. Its state at a given time follows from its
// script, its start and the operations on it, so it needs no goroutine: a caller that
// waits for a change uses a timer.
type instance struct {
	job      runtime.Job
	script   Script
	started  time.Time
	progress []TimedProgress

	mu      sync.Mutex
	ends    time.Time // in the far future for a job that does not end by itself
	exit    runtime.Exit
	termed  bool          // got a TERM
	changed chan struct{} // closed and replaced when ends has changed

	waitErrors, removeErrors []error // returned by the next calls of Wait and Remove
}

func newInstance(job runtime.Job, script Script, started time.Time) *instance {
	return &instance{
		job:      job,
		script:   script,
		started:  started,
		progress: defaultProgress(job, script),
		ends:     after(started, script.Running),
		exit:     script.Exit,
		changed:  make(chan struct{}),

		waitErrors: script.WaitErrors, removeErrors: script.RemoveErrors,
	}
}

// defaultProgress returns the progress of a script. For a script without progress that is not
// Silent, it returns the progress that fits the script's exit.
func defaultProgress(job runtime.Job, script Script) []TimedProgress {
	if script.Silent || script.Progress != nil {
		return script.Progress
	}
	all := []TimedProgress{
		{Progress: runtime.Progress{Step: 0, Status: runtime.Succeeded}},
		{Progress: runtime.Progress{Step: 1, Status: runtime.Running}},
		{Progress: runtime.Progress{Step: 1, Lines: 2}},
	}
	last := runtime.Progress{Lines: 2}
	switch script.Exit.Code {
	case runtime.CodeSucceeded:
		last.Step, last.Status = max(1, job.Definition.Steps-1), runtime.Succeeded
	case runtime.CodeFailed:
		last.Step, last.Status = 1, runtime.Failed
	default:
		return all
	}
	return append(all, TimedProgress{After: script.Running, Progress: last})
}

// after adds a duration without overflow.
func after(start time.Time, span time.Duration) time.Time {
	const far = 100 * 365 * 24 * time.Hour
	return start.Add(min(span, far))
}

// end returns when the instance ends, as far as is known now, and a channel that is closed
// when this time changes.
func (v *instance) end() (time.Time, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ends, v.changed
}

// term sends a TERM, and reports whether it was the first one and the job still ran.
func (v *instance) term() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.termed || !v.ends.After(now) {
		return false
	}
	v.termed = true
	if ends := after(now, v.script.Ending); ends.Before(v.ends) {
		v.move(ends, v.script.OnTerm)
	}
	return true
}

func (v *instance) interrupt() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ends := after(time.Now(), v.script.Interrupting); v.script.Interrupting > 0 && ends.Before(v.ends) {
		v.move(ends, v.script.OnTerm)
	}
}

// kill ends the instance, and reports whether it was running.
func (v *instance) kill() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if !v.ends.After(now) {
		return false
	}
	v.move(now, runtime.Exit{Code: 137, Reason: "killed"})
	return true
}

func (v *instance) move(ends time.Time, exit runtime.Exit) {
	v.ends, v.exit = ends, exit
	close(v.changed)
	v.changed = make(chan struct{})
}

// next removes the first error of a list of the instance and returns it, nil after the last.
func (v *instance) next(list *[]error) (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(*list) > 0 {
		err, *list = (*list)[0], (*list)[1:]
	}
	return err
}

// wait blocks until the instance or ctx has ended.
func (v *instance) wait(ctx context.Context) (runtime.Exit, error) {
	for {
		ends, changed := v.end()
		left := time.Until(ends)
		if left <= 0 {
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.exit, nil
		}
		if err := sleepUntil(ctx, left, changed); err != nil {
			return runtime.Exit{}, err
		}
	}
}

// stream is the progress of an instance, with each line at its time.
type stream struct {
	ctx       context.Context // of the call of Follow; its end ends the stream
	inst      *instance
	opened    time.Time
	next      int       // index of the next line of progress
	remaining []byte    // of the line that is being read
	raw       io.Reader // output of a TimedProgress that is being read; may be nil
	once      sync.Once
	closed    chan struct{}
}

// Read blocks until there is output of the job, or until the stream ends.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.remaining) == 0 {
		if s.raw != nil {
			n, err := s.raw.Read(p)
			if err != nil { // the end of this output
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
		ends, changed := s.inst.end()
		now, due := time.Now(), ends
		breaks := s.breaks()
		if !breaks.After(now) {
			if s.inst.script.BreakErr != nil {
				return 0, s.inst.script.BreakErr
			}
			return 0, io.EOF
		}
		if s.next < len(s.inst.progress) {
			line := s.inst.progress[s.next]
			due = after(s.inst.started, line.After)
			if !due.After(now) && !due.After(ends) {
				s.next++
				if line.Raw != nil {
					s.raw = line.Raw()
					continue
				}
				text, err := json.Marshal(line.Progress)
				if err != nil {
					return 0, err
				}
				s.remaining = append(text, '\n')
				break
			}
		}
		if !ends.After(now) {
			return 0, io.EOF
		}
		timer := time.NewTimer(min(due.Sub(now), ends.Sub(now), breaks.Sub(now)))
		select {
		case <-timer.C:
		case <-changed:
		case <-s.closed:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
	n := copy(p, s.remaining)
	s.remaining = s.remaining[n:]
	return n, nil
}

// breaks returns when the stream breaks off.
func (s *stream) breaks() time.Time {
	for _, span := range s.inst.script.Breaks {
		if at := after(s.inst.started, span); at.After(s.opened) {
			return at
		}
	}
	return after(s.inst.started, Forever)
}

// Close ends the stream, also for a Read that is under way.
func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// sleep blocks for a time, or until ctx has ended.
func sleep(ctx context.Context, span time.Duration) error { return sleepUntil(ctx, span, nil) }

// sleepUntil blocks for a time, or until sooner is closed or ctx has ended.
func sleepUntil(ctx context.Context, span time.Duration, sooner <-chan struct{}) error {
	if ctx.Err() == nil && (span <= 0 || runtime.Sleep(ctx, sooner, span)) {
		return nil
	}
	return context.Cause(ctx)
}
