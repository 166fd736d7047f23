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

// closeLimit is the time that the HTTP server has to finish its responses.
const closeLimit = 5 * time.Second

// shell holds the parts of the agent that belong to no pool: its log, its listener,
// and the limit of all jobs. Each can be replaced while the agent runs.
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

// newShell opens what a configuration describes. A signal that arrives meanwhile ends
// the agent after its start, and is not an error of the listener.
func newShell(ctx context.Context, log *logSwitch, spec reconcile.ProcessSpec) (*shell, error) {
	p := &shell{log: log, slots: runtime.NewSlots(spec.MaxJobs), failed: make(chan error, 1)}
	none := reconcile.ProcessSpec{LogLevel: "info", LogFormat: "text"}
	change, err := p.prepare(context.WithoutCancel(ctx), none, spec)
	if err != nil {
		return nil, err
	}
	change.Commit()
	return p, nil
}

// prepare opens what is new: see [reconcile.Process].
func (p *shell) prepare(ctx context.Context, from, to reconcile.ProcessSpec) (reconcile.Prepared, error) {
	// Open the listener.
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

	// Open the log's sink, or take the one in use.
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

// handle sets the handler of requests.
func (p *shell) handle(handler http.Handler) { p.handler.Store(&handler) }

// inUse returns the listener of the HTTP server, nil if there is none.
func (p *shell) inUse() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listener
}

// answerOn serves on a listener from now on, and shuts the previous server down. A nil
// listener is none.
func (p *shell) answerOn(listener net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()

	// Shut the previous server down.
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

	// Start the new one.
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if handler := p.handler.Load(); handler != nil {
				(*handler).ServeHTTP(w, r)
				return
			}
			http.Error(w, "the agent is starting", http.StatusServiceUnavailable)
		}),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
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

// shut closes a server after it has finished its responses, or after closeLimit.
func shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// serve blocks until ctx ends, or a server fails.
func (p *shell) serve(ctx context.Context) error {
	select {
	case err := <-p.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// close closes the server and the log's sink.
func (p *shell) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.answerOn(nil)
	p.servers.Wait()
	p.log.close()
}
