package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime"
)

// closeLimit bounds the end of the HTTP server: its answers are short.
const closeLimit = 5 * time.Second

// shell is what of the agent belongs to no pool: its log, its listener, and the
// limit of all jobs. Each can be exchanged while the agent runs.
type shell struct {
	log     *logSwitch
	slots   *runtime.Slots
	handler atomic.Pointer[http.Handler]
	servers sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil is none
	server   *http.Server // of the listener
	closed   bool
	failed   chan error
}

// newShell opens what the configuration asks for.
func newShell(ctx context.Context, log *logSwitch, spec reconcile.ProcessSpec) (*shell, error) {
	p := &shell{log: log, slots: runtime.NewSlots(spec.MaxJobs), failed: make(chan error, 1)}
	change, err := p.prepare(ctx, reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}, spec)
	if err != nil {
		return nil, err
	}
	change.Commit()
	return p, nil
}

// prepare opens what is new: see [reconcile.Process].
func (p *shell) prepare(ctx context.Context, from, to reconcile.ProcessSpec) (reconcile.Prepared, error) {
	rebind := from.HTTPPort != to.HTTPPort || from.HTTPAddress != to.HTTPAddress
	var listener net.Listener
	closeListener := func() {
		if listener != nil {
			_ = listener.Close()
		}
	}
	if rebind {
		var err error
		if listener, err = listen(ctx, to.HTTPAddress, to.HTTPPort, p.inUse()); err != nil {
			return reconcile.Prepared{}, err
		}
	}
	sink, err := p.log.open(to)
	if err != nil {
		closeListener()
		return reconcile.Prepared{}, err
	}
	return reconcile.Prepared{
		Commit: func() {
			p.log.use(sink)
			p.slots.SetLimit(to.MaxJobs)
			if rebind {
				p.answerOn(listener)
			}
		},
		Discard: func() {
			closeListener()
			p.log.discard(sink)
		},
	}, nil
}

// handle says what answers requests.
func (p *shell) handle(handler http.Handler) { p.handler.Store(&handler) }

// inUse returns the listener of the HTTP server, nil if there is none.
func (p *shell) inUse() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listener
}

// answerOn serves on a listener from now on, and lets the one before finish its
// answers. Nil is none.
func (p *shell) answerOn(listener net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.server
	p.listener, p.server = listener, nil
	if old != nil {
		p.servers.Go(func() { shut(old) })
	}
	if listener == nil {
		return
	}
	if p.closed {
		_ = listener.Close()
		return
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if handler := p.handler.Load(); handler != nil {
				(*handler).ServeHTTP(w, r)
				return
			}
			http.Error(w, "the agent is starting", http.StatusServiceUnavailable)
		}),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	p.server = server
	p.servers.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			select {
			case p.failed <- fmt.Errorf("serve health: %w", err):
			default:
			}
		}
	})
}

// shut lets a server finish its answers.
func shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// serve waits until ctx ends, or a server fails.
func (p *shell) serve(ctx context.Context) error {
	select {
	case err := <-p.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// close ends the server and the log's sink.
func (p *shell) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.answerOn(nil)
	p.servers.Wait()
	p.log.close()
}
