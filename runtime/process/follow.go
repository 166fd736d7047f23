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

	"github.com/cmwa-project/cmwa/runtime"
)

// Follow reads the file to which the runner writes its progress. At the end of the file
// it waits for more until the runner has ended.
func (e *Executor) Follow(ctx context.Context, id string) (io.ReadCloser, error) {
	inst, err := e.open(id)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(inst.path(progressFile))
	switch {
	case errors.Is(err, fs.ErrNotExist) && inst.exists():
		return io.NopCloser(strings.NewReader("")), nil // the agent ended before it started the runner
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoInstance)
	case err != nil:
		return nil, fmt.Errorf("follow the runner: %w", err)
	}
	return &tail{ctx: ctx, v: inst, file: file, closed: make(chan struct{})}, nil
}

// tail reads a growing file.
type tail struct {
	ctx    context.Context // of Follow: the stream ends with it
	v      *instance
	file   *os.File
	once   sync.Once
	closed chan struct{}
}

// Read blocks until there is more output or the runner has ended.
func (t *tail) Read(p []byte) (int, error) {
	for {
		if t.ctx.Err() != nil {
			return 0, context.Cause(t.ctx)
		}
		_, state := t.v.exitIfEnded() // before the read, so that all output before the end is read
		n, err := t.file.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) || !mayBeRunning(state) {
			return n, err
		}
		runtime.Sleep(t.ctx, t.closed, pollInterval)
	}
}

// Close interrupts a blocked Read.
func (t *tail) Close() error {
	var err error
	t.once.Do(func() {
		close(t.closed)
		err = t.file.Close()
	})
	return err
}
