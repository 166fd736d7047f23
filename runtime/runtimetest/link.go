package runtimetest

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

const linkDial = 10 * time.Second // for connecting to a link's target

// Link forwards TCP connections to one address until the test ends. It does not interpret
// the bytes, so it works for HTTP/1, HTTP/2 and TLS. Methods are safe for concurrent use.
type Link struct {
	target   string
	listener net.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	pairs  map[*pair]bool
}

// pair is one connection of a client and its connection to the target.
type pair struct {
	client, target net.Conn

	swallowed chan struct{} // closed by swallow
	writes    [2]sync.Mutex // one for each direction; held during a write
}

// NewLink listens on 127.0.0.1 and forwards each connection to target: an address in the
// form host:port, or the absolute path of a Unix socket.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	l := &Link{target: target, listener: listen(t, "127.0.0.1"), pairs: map[*pair]bool{}}
	l.all.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// Address returns the address that the link listens on, in the form host:port.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Connections returns the number of open connections that are not black holes.
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

// Blackhole turns each existing connection into a black hole, like a firewall that loses its
// state. After Blackhole returns, no byte and no end of the connection passes in either
// direction; writes succeed and their bytes are lost. New connections work. Blackhole returns
// the number of connections that became black holes.
func (l *Link) Blackhole() int {
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

// Reset ends each existing connection, including black holes, with a TCP reset on both sides.
// It returns the number of these connections.
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

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.all.Go(func() { l.serve(client) })
	}
}

func (l *Link) serve(client net.Conn) {
	network := "tcp"
	if strings.HasPrefix(l.target, "/") {
		network = "unix"
	}
	target, err := net.DialTimeout(network, l.target, linkDial)
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

// forward copies from one side to the other until either ends. From a black hole it still
// reads, and drops the bytes.
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

// pass writes the bytes that were read to the other side. If err, the error of the read, is
// not nil, pass then also ends the other side. On a black hole it does nothing. It reports
// whether the caller should continue to read.
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
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	case err != nil:
		abort(to)
	}
	return err == nil
}

// swallow makes the connection a black hole. It interrupts writes that block, and returns
// when no write is in progress.
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

// dark reports whether the connection is a black hole.
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

// abort closes a connection with a TCP reset.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
