package runtimetest

import (
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// faultListener accepts connections that can become black holes and be reset.
type faultListener struct {
	net.Listener

	mu    sync.Mutex
	conns map[*faultConn]bool
}

func newFaultListener(inner net.Listener) *faultListener {
	return &faultListener{Listener: inner, conns: map[*faultConn]bool{}}
}

func (l *faultListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &faultConn{Conn: conn, listener: l}
	l.mu.Lock()
	l.conns[c] = true
	l.mu.Unlock()
	return c, nil
}

// each calls act for each open connection, and returns how often act returned true.
func (l *faultListener) each(act func(*faultConn) bool) (count int) {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range all {
		if act(c) {
			count++
		}
	}
	return count
}

// faultConn is the server's side of a client's connection, below TLS. Methods
// are safe for concurrent use.
type faultConn struct {
	net.Conn
	listener *faultListener
	state    atomic.Int32
}

// The states of a faultConn.
const (
	connFree      = iota
	connKept      // has carried a poll: never broken
	connSwallowed // black hole: drops everything that arrives or is written
)

// enter changes the state of a free connection. It reports whether the connection has the state now.
func (c *faultConn) enter(state int32) bool {
	return c.state.CompareAndSwap(connFree, state) || c.state.Load() == state
}

// faultConnOf returns the connection below TLS.
func faultConnOf(conn net.Conn) *faultConn {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return conn.(*faultConn)
}

// keep protects the connection from faults from now on. It returns false, and changes nothing,
// if the connection is a black hole.
func (c *faultConn) keep() bool { return c.enter(connKept) }

// swallow turns the connection into a black hole. It returns false, and changes nothing, if
// the connection is protected.
func (c *faultConn) swallow() bool { return c.enter(connSwallowed) }

// reset ends the connection with a TCP reset. It returns false, and changes nothing, if the
// connection is protected. The connection becomes a black hole first, so that a poll that
// arrives before the reset does not reach the service.
func (c *faultConn) reset() bool {
	if !c.swallow() {
		return false
	}
	c.forget()
	abort(c.Conn)
	return true
}

// Read drops what arrives on a swallowed connection, until its end.
func (c *faultConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || c.state.Load() != connSwallowed {
			return n, err
		}
	}
}

// Write accepts and drops what is written to a swallowed connection.
func (c *faultConn) Write(b []byte) (int, error) {
	if c.state.Load() == connSwallowed {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *faultConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

func (c *faultConn) forget() {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
}
