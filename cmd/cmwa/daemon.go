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

	"github.com/cmwa-project/cmwa/cmd/cmwa/logging"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/runtime/pool"
)

// closeTimeout is the time in which the HTTP server must finish its responses.
const closeTimeout = 5 * time.Second

// daemon holds the parts of the agent that belong to no pool: its log, its HTTP server,
// and the limit of all jobs. A reload can replace each of them.
type daemon struct {
	log     *logging.Log
	slots   *pool.Slots
	handler atomic.Pointer[http.Handler]
	servers sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil without an HTTP server
	server   *http.Server // of the listener
	closed   bool
	failed   chan error
}

// newDaemon opens the log and the HTTP server of a configuration. It ignores the end of ctx:
// a signal during this call ends the agent later, and is not an error of the listener.
func newDaemon(ctx context.Context, log *logging.Log, spec reconcile.ProcessSpec) (*daemon, error) {
	d := &daemon{log: log, slots: pool.NewSlots(spec.MaxJobs), failed: make(chan error, 1)}
	change, err := d.prepare(context.WithoutCancel(ctx), reconcile.ProcessSpec{}, spec)
	if err != nil {
		return nil, err
	}
	change.Commit()
	return d, nil
}

// prepare opens a new listener if its address has changed, and the sink of the log: see
// [reconcile.Process].
func (d *daemon) prepare(ctx context.Context, from, to reconcile.ProcessSpec) (reconcile.Prepared, error) {
	rebind := from.HTTPPort != to.HTTPPort || from.HTTPAddress != to.HTTPAddress
	var listener net.Listener
	closeListener := func() {
		if listener != nil {
			_ = listener.Close()
		}
	}
	if rebind {
		d.mu.Lock()
		inUse := d.listener
		d.mu.Unlock()
		var err error
		if listener, err = listen(ctx, to.HTTPAddress, to.HTTPPort, inUse); err != nil {
			return reconcile.Prepared{}, err
		}
	}

	sink, err := d.log.Open(to)
	if err != nil {
		closeListener()
		return reconcile.Prepared{}, err
	}
	return reconcile.Prepared{
		Commit: func() {
			d.log.Use(sink)
			d.slots.SetLimit(to.MaxJobs)
			if rebind {
				d.serveOn(listener)
			}
		},
		Discard: func() {
			closeListener()
			d.log.Discard(sink)
		},
	}, nil
}

func (d *daemon) handle(handler http.Handler) { d.handler.Store(&handler) }

// serveOn starts a server for a listener, and shuts the previous server down. If the
// listener is nil, serveOn starts no server.
func (d *daemon) serveOn(listener net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.server
	d.listener, d.server = listener, nil
	if old != nil {
		d.servers.Go(func() { shut(old) })
	}
	if listener == nil {
		return
	}
	if d.closed {
		_ = listener.Close()
		return
	}

	// A page of the status is open until the browser closes it, or the server shuts down.
	requests, stop := context.WithCancel(context.Background())
	server := &http.Server{
		BaseContext: func(net.Listener) context.Context { return requests },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if handler := d.handler.Load(); handler != nil {
				(*handler).ServeHTTP(w, r)
				return
			}
			http.Error(w, "the agent is starting", http.StatusServiceUnavailable)
		}),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	server.RegisterOnShutdown(stop)
	d.server = server
	d.servers.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			select {
			case d.failed <- fmt.Errorf("serve health: %w", err):
			default:
			}
		}
	})
}

// shut closes a server after it has finished its responses, or after closeTimeout.
func shut(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// serve blocks until ctx ends, or a server fails.
func (d *daemon) serve(ctx context.Context) error {
	select {
	case err := <-d.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (d *daemon) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.serveOn(nil)
	d.servers.Wait()
	d.log.Close()
}
