package cloud

import (
	"net"
	"net/http"
)

// probeCount is the number of unanswered TCP probes that end a connection.
const probeCount = 2

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
