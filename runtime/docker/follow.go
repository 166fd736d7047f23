package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// Limits of what is read to find the last message of a runner. The engine counts the lines of both streams, so the
// runner's progress and the output of steps may follow the message.
const (
	messageTail = "20"
	maxMessage  = 20 * (runtime.MaxLocalLine + 32) // bytes of standard error
)

// Follow streams the container's standard output from its beginning. If the engine ends the
// stream early, Read returns an error, and Follow can be called again.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	if !isID(id) {
		return nil, fmt.Errorf("follow %q: %w", id, runtime.ErrNoInstance)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(shortLimit, func() { cancel(context.DeadlineExceeded) })
	log, err := e.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, Follow: true})
	switch late := !timer.Stop(); {
	case errdefs.IsNotFound(err):
		cancel(nil)
		return nil, fmt.Errorf("follow %s: %w", shortID(id), runtime.ErrNoInstance)
	case err != nil:
		err = causeOf(ctx, err)
		cancel(nil)
		return nil, engineError("follow the container", e.host, err)
	case late:
		_ = log.Close()
		return nil, engineError("follow the container", e.host, context.DeadlineExceeded)
	}
	reader, writer := io.Pipe()
	s := &stream{PipeReader: reader, log: log, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_, err := stdcopy.StdCopy(writer, io.Discard, log)
		_ = writer.CloseWithError(err) // never fails; nil means the end
	}()
	return s, nil
}

// stream is the standard output of a container. A goroutine separates it from standard
// error; Close waits for the end of the goroutine.
type stream struct {
	*io.PipeReader
	log    io.ReadCloser
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// Close ends the stream and interrupts a blocked Read.
func (s *stream) Close() error {
	s.cancel(nil)
	_ = s.PipeReader.Close()
	_ = s.log.Close()
	<-s.done
	return nil
}

// lastMessage returns the last line that the container has written to its standard error:
// the last message of the runner, or of the program that should have started it. It
// returns "" if there is none or it cannot be read.
func (e *Executor) lastMessage(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	log, err := e.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStderr: true, Tail: messageTail})
	if err != nil {
		return ""
	}
	defer log.Close()
	var text bytes.Buffer
	_, _ = stdcopy.StdCopy(io.Discard, &limitedWriter{w: &text, remaining: maxMessage}, log) // a part is enough
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(text.String(), "\uFFFD")), "\n")
	for _, line := range slices.Backward(lines) {
		if !runtime.IsLocalLine(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
