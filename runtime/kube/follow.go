package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Follow streams the progress of the job from the beginning. Standard output and standard
// error of a container are in one log. Follow returns only the lines of progress and drops
// the runner's own log. The end of the stream does not mean that the job has ended.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	name, uid, ok := parseID(id)
	if !ok {
		return nil, fmt.Errorf("follow %q: %w", id, runtime.ErrNoInstance)
	}
	sub := e.pods.subscribe(name, false)
	defer sub.close()
	now, _, _ := sub.current()
	if now != nil && now.uid != uid {
		return nil, fmt.Errorf("follow %s: %w", name, runtime.ErrNoInstance)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	startTimer := time.AfterFunc(streamLimit, func() { cancel(context.DeadlineExceeded) })
	log, err := e.client.log(ctx, e.namespace, name)
	switch timedOut := !startTimer.Stop(); {
	case isNotFound(err):
		cancel(nil)
		return nil, fmt.Errorf("follow %s: %w", name, runtime.ErrNoInstance)
	case err != nil:
		err = withCause(ctx, err)
		cancel(nil)
		return nil, e.explain("follow the Pod", err)
	case timedOut:
		_ = log.Close()
		return nil, e.explain("follow the Pod", context.DeadlineExceeded)
	}

	s := &stream{log: log, ctx: ctx, cancel: cancel}
	if now != nil && now.carrier != inAnnotation {
		s.onFirst = func() { e.handoffReceived(ctx, now.carrier, name) }
	}
	return s, nil
}

// handoffReceived deletes the object that carried a handoff. It is called at the first line
// of progress, which shows that the runner has read the handoff. If the deletion fails, the
// object is deleted with the Pod.
func (e *Executor) handoffReceived(ctx context.Context, carrier delivery, pod string) {
	ctx, cancel := detached(ctx, handoffRemoveLimit)
	defer cancel()
	if err := e.removeObject(ctx, string(carrier), objectOf(pod)); err != nil {
		e.log.Debug("cannot remove received handoff", "pod", pod, "error", err)
	}
}

// stream returns the progress in a container's log. While it waits for the log, which it
// does nearly all of the time, it holds no buffer.
type stream struct {
	log     io.ReadCloser
	ctx     context.Context // of the request; its cause explains the end of the stream
	cancel  context.CancelCauseFunc
	line    []byte // the current line
	skip    bool   // the current line is not a line of progress
	passed  []byte // lines of progress that Read has not returned yet
	onFirst func() // called once, at the first line of progress; may be nil
}

// Read reads lines of progress.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.passed) == 0 {
		n, err := s.log.Read(p)
		s.filter(p[:n])
		switch {
		case len(s.passed) > 0 && s.onFirst != nil:
			s.onFirst()
			s.onFirst = nil
		case len(s.passed) > 0 || err == nil:
		case s.ctx.Err() != nil && !errors.Is(err, io.EOF):
			return 0, context.Cause(s.ctx)
		default:
			return 0, err
		}
	}
	n := copy(p, s.passed)
	if s.passed = s.passed[n:]; len(s.passed) == 0 {
		s.passed = nil
	}
	return n, nil
}

// filter adds the lines of progress in text to passed.
func (s *stream) filter(text []byte) {
	for len(text) > 0 {
		line, remaining, whole := bytes.Cut(text, []byte("\n"))
		text = remaining
		if !s.skip {
			s.line = append(s.line, line...)
			s.skip = len(s.line) >= runtime.MaxProgressLine || !bytes.HasPrefix(s.line, []byte("{"))
		}
		if whole && !s.skip {
			s.passed = append(append(s.passed, s.line...), '\n')
		}
		if whole || s.skip {
			s.line = nil
		}
		if whole {
			s.skip = false
		}
	}
}

// Close ends the stream and unblocks Read.
func (s *stream) Close() error {
	s.cancel(nil)
	return s.log.Close()
}
