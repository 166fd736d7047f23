//go:build linux || darwin

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Follow reads the file that the runner writes its progress to, and waits at
// its end for more until the runner has ended.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	v, err := e.open(id)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(v.path(progressFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.there():
		return io.NopCloser(strings.NewReader("")), nil // the agent died before the runner was started
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoEnvironment)
	case err != nil:
		return nil, fmt.Errorf("follow the runner: %w", err)
	}
	return &tail{ctx: ctx, v: v, file: file, closed: make(chan struct{})}, nil
}

// tail reads a file that grows.
type tail struct {
	ctx    context.Context // of Follow: it is the life of the stream
	v      *environment
	file   *os.File
	once   sync.Once
	closed chan struct{}
}

// Read blocks until the runner has said something more or has ended.
func (t *tail) Read(p []byte) (int, error) {
	for {
		if t.ctx.Err() != nil {
			return 0, context.Cause(t.ctx)
		}
		_, state := t.v.ended() // before the read: what is said until the end is read
		n, err := t.file.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) || !unended(state) {
			return n, err
		}
		timer := time.NewTimer(lookAgain)
		select {
		case <-timer.C:
		case <-t.closed:
		case <-t.ctx.Done():
		}
		timer.Stop()
	}
}

// Close ends a Read that is under way.
func (t *tail) Close() error {
	var err error
	t.once.Do(func() {
		close(t.closed)
		err = t.file.Close()
	})
	return err
}
