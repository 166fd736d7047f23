package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/cmwa-project/cmwa/runtime"
)

// maxWords limits a runner's last words, in bytes.
const maxWords = 4 << 10

// Follow streams the container's standard output. A stream that the engine
// breaks off ends early; it can be followed from its beginning again.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	if !isID(id) {
		return nil, fmt.Errorf("follow %q: %w", id, runtime.ErrNoEnvironment)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	impatience := time.AfterFunc(shortLimit, func() { cancel(context.DeadlineExceeded) })
	log, err := e.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, Follow: true})
	switch late := !impatience.Stop(); {
	case errdefs.IsNotFound(err):
		cancel(nil)
		return nil, fmt.Errorf("follow %s: %w", short(id), runtime.ErrNoEnvironment)
	case err != nil:
		err = because(ctx, err)
		cancel(nil)
		return nil, refused("follow the container", e.host, err)
	case late:
		_ = log.Close()
		return nil, refused("follow the container", e.host, context.DeadlineExceeded)
	}
	reader, writer := io.Pipe()
	s := &stream{reader: reader, log: log, cancel: cancel, done: make(chan struct{})}
	go s.split(writer)
	return s, nil
}

// stream is the standard output of a container, taken out of the engine's
// stream of both outputs by a goroutine that Close waits for.
type stream struct {
	reader *io.PipeReader
	log    io.ReadCloser
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func (s *stream) split(to *io.PipeWriter) {
	defer close(s.done)
	_, err := stdcopy.StdCopy(to, io.Discard, s.log)
	_ = to.CloseWithError(err) // never fails; without an error it is the end
}

// Read reads what the runner has said.
func (s *stream) Read(p []byte) (int, error) { return s.reader.Read(p) }

// Close ends the stream, and with it a Read that is under way.
func (s *stream) Close() error {
	s.cancel(nil)
	_ = s.reader.Close()
	_ = s.log.Close()
	<-s.done
	return nil
}

// lastWords is the last line that the container has written to its standard
// error: what the runner, or what should have started it, had to say at the end.
// It is empty if there is none or it cannot be had.
func (e *Executor) lastWords(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, shortLimit)
	defer cancel()
	log, err := e.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStderr: true, Tail: "5"})
	if err != nil {
		return ""
	}
	defer log.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(io.Discard, &limited{to: &text, left: maxWords}, log); err != nil && text.Len() == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(text.String(), "\uFFFD")), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
