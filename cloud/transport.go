package cloud

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"weak"
)

// Transports are the transports of clients. Clients that trust the same certificates share them,
// because an agent may have a thousand clients, and each would need 6 kB for transports of its own,
// and more after the first call. It is safe for concurrent use.
type Transports struct {
	base *http.Transport // that is cloned; nil means that of newTransport

	mu     sync.Mutex
	shared map[string]weak.Pointer[transports] // by certificates; without a value when no client uses it
}

// NewTransports returns transports that are clones of base. A nil base is Go's default transport
// with limits for dead connections.
func NewTransports(base *http.Transport) *Transports {
	return &Transports{base: base, shared: map[string]weak.Pointer[transports]{}}
}

// transports are two ways to connect to services. Both trust the same certificates.
type transports struct {
	certificates string // in addition to those of the system
	reusing      *http.Transport
	single       *http.Transport // closes each connection after one call
	err          error           // why the certificates are not trusted; nil if they are
}

// maxIdle is the largest number of idle connections to one service. Go's default is 2: the heartbeats
// of many jobs would often need new connections.
const maxIdle = 16

// trusting returns transports that trust the system's certificates and certificates.
func (t *Transports) trusting(certificates string) *transports {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found := t.shared[certificates].Value(); found != nil {
		return found
	}

	// Make new ones, and forget those without a client.
	made := &transports{certificates: certificates, reusing: newTransport()}
	if t.base != nil {
		made.reusing = t.base.Clone()
	}
	made.reusing.MaxIdleConnsPerHost = maxIdle
	made.err = trust(made.reusing, certificates)
	made.single = made.reusing.Clone()
	made.single.DisableKeepAlives = true
	maps.DeleteFunc(t.shared, func(_ string, former weak.Pointer[transports]) bool { return former.Value() == nil })
	t.shared[certificates] = weak.Make(made)
	return made
}

// CheckProxy returns an error if HTTPS_PROXY or HTTP_PROXY is not the URL of a proxy. Go's default
// transport ignores such a variable and connects without a proxy, or looks for a wrong host. The error
// does not contain the value, which may have a password.
func CheckProxy(environ func(name string) (value string, ok bool)) error {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		value, _ := environ(name)
		if value == "" {
			continue
		}
		if !strings.Contains(value, "://") {
			value = "http://" + value // as Go reads it
		}
		if proxy, err := url.Parse(value); err != nil || proxy.Hostname() == "" {
			return fmt.Errorf("%s is not the URL of a proxy", name)
		}
	}
	return nil
}

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
