package cloud

import (
	"net"
	"net/http"
	"time"
)

// Limits after which a connection that answers nothing is given up. A firewall or
// a load balancer may drop a connection without a message; requests on it would
// otherwise time out one after the other, heartbeats among them. Together they are
// below the 30 seconds between two heartbeats.
const (
	pingAfter    = 15 * time.Second // of silence, until a ping (HTTP/2) or a probe (TCP) is sent
	pingTimeout  = 10 * time.Second // for the answer to a ping, and for data to be written
	probeEvery   = 5 * time.Second  // between two TCP probes
	probeCount   = 2                // unanswered TCP probes that end the connection
	unackedLimit = 25 * time.Second // for sent data to be acknowledged (TCP_USER_TIMEOUT, Linux only)
	dialTimeout  = 30 * time.Second // as in Go's default transport
)

// newTransport returns a copy of Go's default transport that closes dead
// connections: over HTTP/2 by pings, below it by TCP's own means.
func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pingAfter, Interval: probeEvery, Count: probeCount},
		Control:         limitUnacked,
	}
	transport.DialContext = dialer.DialContext
	transport.HTTP2 = &http.HTTP2Config{
		SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingTimeout,
	}
	return transport
}
