package cloud

import (
	"net"
	"net/http"
	"time"
)

// Limits after which a silent connection is closed. A firewall or a load balancer may
// drop a connection without a message. All requests on this connection, including
// heartbeats, would then time out one after the other. A dead connection is closed within
// 25 seconds, which is less than the heartbeat interval of 30 seconds.
const (
	pingIdle      = 15 * time.Second // of silence, until a ping (HTTP/2) or a probe (TCP) is sent
	pingTimeout   = 10 * time.Second // for the answer to a ping, and for data to be written
	probeInterval = 5 * time.Second  // between two TCP probes
	probeCount    = 2                // unanswered TCP probes that end the connection
	unackedLimit  = 25 * time.Second // for sent data to be acknowledged (TCP_USER_TIMEOUT, Linux only)
	dialTimeout   = 30 * time.Second // as in Go's default transport
)

// newTransport returns a copy of Go's default transport that closes dead connections. It
// detects them with HTTP/2 pings, TCP keep-alive probes and limitUnacked.
func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pingIdle, Interval: probeInterval, Count: probeCount},
		Control:         limitUnacked,
	}
	transport.DialContext = dialer.DialContext
	transport.HTTP2 = &http.HTTP2Config{
		SendPingTimeout: pingIdle, PingTimeout: pingTimeout, WriteByteTimeout: pingTimeout,
	}
	return transport
}
