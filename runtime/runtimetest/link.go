package runtimetest

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// linkDial is the time limit of a connection to a link's target.
const linkDial = 10 * time.Second

// Link forwards TCP connections to one address, byte by byte, until the test
// ends. It knows nothing of what it carries, so HTTP/1, HTTP/2 and TLS all pass
// through it. Methods are safe for concurrent use.
type Link struct {
	target   string
	listener net.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	pairs  map[*pair]bool
}

// pair is one connection of a client and the one to the target that belongs to it.
type pair struct {
	client, target net.Conn

	swallowed chan struct{} // closed by swallow
	writes    [2]sync.Mutex // held by a write in either direction
}

// NewLink listens on 127.0.0.1 and forwards each connection to target, an
// address in the form host:port.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for a link to %s: %v", target, err)
	}
	l := &Link{target: target, listener: listener, pairs: map[*pair]bool{}}
	l.all.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Address is the address that the link listens on, in the form host:port.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Connections returns the number of connections that are open and not swallowed.
func (l *Link) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for p := range l.pairs {
		if !p.dark() {
			open++
		}
	}
	return open
}

// Swallow turns each existing connection into a black hole, as a firewall does
// that drops its state: once Swallow returns, no byte and no end of the
// connection gets through in either direction, and what is written to it is
// accepted and lost. New connections work. It returns the number of connections
// that it swallowed.
func (l *Link) Swallow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := 0
	for p := range l.pairs {
		if !p.dark() {
			p.swallow()
			count++
		}
	}
	return count
}

// Reset ends each existing connection with a TCP reset on both sides, swallowed
// ones too. It returns the number of connections that it reset.
func (l *Link) Reset() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := len(l.pairs)
	for p := range l.pairs {
		p.reset()
		delete(l.pairs, p)
	}
	return count
}

// close ends the link and waits for its goroutines.
func (l *Link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.listener.Close()
	l.Reset()
	l.all.Wait()
}

// accept serves connections until the listener is closed.
func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.all.Go(func() { l.serve(client) })
	}
}

// serve forwards one connection.
func (l *Link) serve(client net.Conn) {
	target, err := net.DialTimeout("tcp", l.target, linkDial)
	if err != nil {
		abort(client)
		return
	}
	p := &pair{client: client, target: target, swallowed: make(chan struct{})}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		p.reset()
		return
	}
	l.pairs[p] = true
	l.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.forward(0, client, target) })
	both.Go(func() { p.forward(1, target, client) })
	both.Wait()
	if p.dark() {
		return // both sides stay open until Reset or the end of the test
	}
	_ = client.Close()
	_ = target.Close()
	l.mu.Lock()
	delete(l.pairs, p)
	l.mu.Unlock()
}

// forward copies from one side to the other until either ends. Of a swallowed
// connection it goes on reading, and drops what it reads.
func (p *pair) forward(direction int, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !p.pass(direction, to, buffer[:n], err) && !p.dark() {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass writes what was read, and the end of what was read, unless the connection
// is swallowed. It reports whether the other side took it.
func (p *pair) pass(direction int, to net.Conn, text []byte, err error) bool {
	p.writes[direction].Lock()
	defer p.writes[direction].Unlock()
	if p.dark() {
		return false
	}
	if len(text) > 0 {
		if _, failed := to.Write(text); failed != nil {
			return false
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		if half, ok := to.(*net.TCPConn); ok {
			_ = half.CloseWrite()
		}
	case err != nil:
		abort(to)
	}
	return err == nil
}

// swallow waits for writes that are in progress, after it has ended those that
// block.
func (p *pair) swallow() {
	close(p.swallowed)
	for _, conn := range []net.Conn{p.client, p.target} {
		_ = conn.SetWriteDeadline(time.Unix(1, 0))
	}
	for i := range p.writes {
		p.writes[i].Lock()
		defer p.writes[i].Unlock()
	}
}

// dark reports whether the connection is swallowed.
func (p *pair) dark() bool {
	select {
	case <-p.swallowed:
		return true
	default:
		return false
	}
}

func (p *pair) reset() {
	abort(p.client)
	abort(p.target)
}

// abort closes a connection with a reset instead of an orderly end.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
