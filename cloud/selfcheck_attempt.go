package cloud

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// attempt is one request of the self checks and its result.
type attempt struct {
	proxy     *url.URL // nil without a proxy
	badProxy  bool     // the variable that names a proxy is not valid
	connected string   // address of the connection; empty if there was none

	handshakeDone bool                 // a TLS handshake has ended
	handshake     error                // of the TLS handshake, such as an untrusted certificate
	tls           *tls.ConnectionState // nil without a handshake

	sent, received time.Time
	err            error // nil if there was a response
	status         int
	header         http.Header
	text           []byte       // of the response, up to maxAnswer
	refusal        *StatusError // nil for a response that is a success
}

// refusedByProxy reports whether the proxy did not connect to the service.
func (a *attempt) refusedByProxy() bool {
	return a.err != nil && a.proxy != nil && !a.handshakeDone
}

// try requests the status of a deployment that does not exist. If the token is empty, the
// request has no Authorization header. The text and the header of the attempt may contain the
// token, because some proxies return the request; its refusal does not.
func (c *selfChecker) try(ctx context.Context, token string) *attempt {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	var mu sync.Mutex // a connection may be made even after the request has ended
	var seen attempt
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectDone: func(_, address string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				seen.connected = address
			}
		},
		TLSHandshakeDone: func(state tls.ConnectionState, err error) {
			mu.Lock()
			defer mu.Unlock()
			seen.handshakeDone, seen.tls, seen.handshake = true, &state, err
		},
	})
	a := &attempt{sent: time.Now()}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		a.connected, a.handshakeDone, a.tls, a.handshake = seen.connected, seen.handshakeDone, seen.tls, seen.handshake
	}()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.options.Identity.Service+absentStatus, nil)
	if err != nil {
		a.err = withoutURL(err)
		return a
	}
	by := &caller{callerOptions: callerOptions{userAgent: c.options.UserAgent}}
	q := call{token: secret.New(token)}
	by.setHeader(request.Header, q)
	if c.transport.Proxy != nil {
		if a.proxy, err = c.transport.Proxy(request); err != nil { // err may show a password
			err = errors.New(c.proxyVariable() + " is not the URL of a proxy")
		} else {
			err = CheckProxy(os.LookupEnv)
		}
		if err != nil {
			a.badProxy, a.err = true, err
			return a
		}
	}
	client := &http.Client{Transport: c.transport, CheckRedirect: followNothing}
	response, err := client.Do(request)
	a.received = time.Now()
	if err != nil {
		a.err = attemptError(err)
		return a
	}
	defer response.Body.Close()

	a.status, a.header = response.StatusCode, response.Header
	a.text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if a.status/100 == 2 {
		if err != nil {
			a.err = attemptError(err)
		}
	} else {
		a.refusal = newStatusError(q, response, a.text)
	}
	return a
}

// attemptError is [withoutURL] for a request whose limit is not request_timeout.
func attemptError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no response within " + attemptLimit.String())
	}
	return withoutURL(err)
}

// checkToken checks that the service accepts the token: the responses to a request with
// and without it must differ.
func (c *selfChecker) checkToken(ctx context.Context) selfcheck.Result {
	return c.judgeToken(ctx, c.options.Tuning.Token.Reveal(), "check token, token_file or PULUMI_AGENT_TOKEN: "+
		"it must be the token of an agent pool at "+c.options.Identity.Service)
}

// judgeToken makes the request with a token. Hint is the hint for a refused token. The
// result does not contain the token, even if the response repeats it.
func (c *selfChecker) judgeToken(ctx context.Context, token, hint string) selfcheck.Result {
	result := c.compare(ctx, token, hint)
	if token != "" {
		result.Message = strings.ReplaceAll(result.Message, token, secret.Mark)
	}
	return result
}

// compare compares the responses to a request with the token and to one without.
func (c *selfChecker) compare(ctx context.Context, token, hint string) selfcheck.Result {
	a, without := c.try(ctx, token), c.anonymous(ctx)
	switch {
	case a.err != nil:
		return selfcheck.Failed("the service does not answer to a request with the token: %v", a.err).
			WithHint("check the service, and firewalls and proxies between")
	case a.status == http.StatusUnauthorized:
		return selfcheck.Failed("the service rejects the token: %v", a.refusal).WithHint("%s", hint)
	case a.status == without.status:
		return selfcheck.Skipped("the service gives the same response with and without the token (status %d), "+
			"and a poll, which would show the difference, may claim a job", a.status).
			WithHint("start the agent, and look at cmwa status")
	case unclear(a.status):
		return selfcheck.Skipped("the response does not show whether the service accepts the token: %v", a.refusal).
			WithHint("repeat the check later")
	case a.status == http.StatusForbidden:
		return selfcheck.Warned("the service knows the token and forbids the request: %v", a.refusal).
			WithHint("check at the service that the pool exists, and that its organization may use agents")
	}
	return selfcheck.Passed("the service accepts the token: it answers %d with it and %d without, "+
		"to a request that claims no job", a.status, without.status)
}

// unclear reports whether a status may come from a proxy, or from a service that has not
// checked the token. 500 is not such a status: one service answers 500 to this call with a
// valid token.
func unclear(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return status/100 == 3
}
