package kube

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock measures how far the clock of the API server is ahead of the agent's clock. Agents whose
// clocks differ compare times by the clock of the server. It is safe for concurrent use.
type serverClock struct {
	ahead atomic.Int64 // nanoseconds; 0 before the first response
}

// now returns the time of the API server, to about a second.
func (c *serverClock) now() time.Time { return c.toServer(time.Now()) }

// toServer returns the time of the API server at a time of the agent.
func (c *serverClock) toServer(t time.Time) time.Time { return t.Add(time.Duration(c.ahead.Load())) }

// fromServer returns the time of the agent at a time of the API server.
func (c *serverClock) fromServer(t time.Time) time.Time { return t.Add(-time.Duration(c.ahead.Load())) }

// wrap returns a transport that reads the time from the header Date of each successful response.
func (c *serverClock) wrap(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := base.RoundTrip(r)
		if err == nil && response.StatusCode < http.StatusMultipleChoices { // errors may be of a proxy
			if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
				c.ahead.Store(int64(time.Until(date)))
			}
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
