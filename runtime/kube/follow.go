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

// Follow streams the output of the job's container from its beginning. A Pod has
// one log for both outputs of a container; only lines of progress pass, and what
// the runner logs is left out. The end of the stream is not the end of the job.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	name, uid, ok := parseID(id)
	if !ok {
		return nil, fmt.Errorf("follow %q: %w", id, runtime.ErrNoEnvironment)
	}
	seen := e.pods.subscribe(name, false)
	defer seen.close()
	now, _, _ := seen.now()
	if now != nil && now.uid != uid {
		return nil, fmt.Errorf("follow %s: %w", name, runtime.ErrNoEnvironment)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(streamLimit, func() { cancel(context.DeadlineExceeded) })
	log, err := e.client.log(ctx, e.namespace, name)
	switch late := !slow.Stop(); {
	case absent(err):
		cancel(nil)
		return nil, fmt.Errorf("follow %s: %w", name, runtime.ErrNoEnvironment)
	case err != nil:
		err = because(ctx, err)
		cancel(nil)
		return nil, e.explain("follow the Pod", err)
	case late:
		_ = log.Close()
		return nil, e.explain("follow the Pod", context.DeadlineExceeded)
	}
	s := &stream{log: log, ctx: ctx, cancel: cancel}
	if now != nil && now.carrier != "" {
		s.first = func() { e.received(ctx, now.carrier, name) }
	}
	return s, nil
}

// received deletes the object that carried a handoff: the runner has read it, or it
// could report no progress. What cannot be deleted now is deleted with the Pod.
func (e *Executor) received(ctx context.Context, resource, pod string) {
	ctx, cancel := outliving(ctx, receivedLimit)
	defer cancel()
	if err := e.removeObject(ctx, resource, objectOf(pod)); err != nil {
		e.log.Debug("cannot remove a handoff that was read", "pod", pod, "error", err)
	}
}

// receivedLimit is how long the removal of a handoff may hold up the progress of its
// job.
const receivedLimit = 10 * time.Second

// maxLine is the length in bytes of the longest line that can be one of progress.
const maxLine = 512

// stream is the progress in a container's log. It has no buffer while it waits, as it
// does for nearly all of a job.
type stream struct {
	log    io.ReadCloser
	ctx    context.Context // of the request, for the cause of its end
	cancel context.CancelCauseFunc
	part   []byte // of the line that is being read
	skips  bool   // that line does not pass
	ready  []byte // lines that pass
	first  func() // called once, at the first line that passes; may be nil
}

// Read reads lines of progress.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.ready) == 0 {
		n, err := s.log.Read(p)
		s.sift(p[:n])
		switch {
		case len(s.ready) > 0 && s.first != nil:
			s.first()
			s.first = nil
		case len(s.ready) > 0 || err == nil:
		case s.ctx.Err() != nil && !errors.Is(err, io.EOF):
			return 0, context.Cause(s.ctx)
		default:
			return 0, err
		}
	}
	n := copy(p, s.ready)
	if s.ready = s.ready[n:]; len(s.ready) == 0 {
		s.ready = nil
	}
	return n, nil
}

// sift takes the lines of progress out of the next part of the log.
func (s *stream) sift(text []byte) {
	for len(text) > 0 {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		text = rest
		if !s.skips {
			s.part = append(s.part, line...)
			s.skips = len(s.part) >= maxLine || !bytes.HasPrefix(s.part, []byte("{"))
		}
		if whole && !s.skips {
			s.ready = append(append(s.ready, s.part...), '\n')
		}
		if whole || s.skips {
			s.part = nil
		}
		if whole {
			s.skips = false
		}
	}
}

// Close ends the stream, and a Read that is blocked.
func (s *stream) Close() error {
	s.cancel(nil)
	return s.log.Close()
}
