package cloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime/selfcheck"
)

// absentStatus is the path of the call of the self checks: the status of a deployment
// that does not exist. According to Pulumi's documentation, agents use the call to learn
// whether a deployment is active. It needs the pool's token and changes nothing. A poll
// would need the token, too, but may claim a job.
const absentStatus = "/api/deployments/00000000-0000-0000-0000-000000000000/status"

// SelfChecks returns the checks of a pool's service and credentials: the service can be
// reached, its certificate is trusted, its response does not come from a proxy, its clock
// agrees, and it accepts the token. They make one request without a token, and the same
// request with the token.
//
// An exchange of an OIDC token makes the service issue a token that is valid for hours
// and cannot be revoked. The exchange is made only if the parameter exchange is true.
// Otherwise the token of a pool with an oidc_token_file is not checked.
func SelfChecks(o Options, exchange bool) []selfcheck.Check {
	c := newSelfChecker(o)
	checks := []selfcheck.Check{
		{Name: "service-connection", Run: c.checkConnection},
		{Name: "service-certificate", Needs: "service-connection", Run: c.checkCertificate},
		{Name: "service-answer", Needs: "service-certificate", Run: c.checkAnswer},
		{Name: "service-clock", Needs: "service-answer", Run: c.checkClock},
	}
	token := selfcheck.Check{Name: "service-token", Needs: "service-answer", Run: c.checkToken}
	if o.Tuning.OIDCTokenFile == "" {
		return append(checks, token)
	}
	token.Run = func(ctx context.Context) selfcheck.Result { return c.checkExchange(ctx, exchange) }
	return append(checks, selfcheck.Check{Name: "oidc-token", Run: c.checkTokenFile}, token)
}

// selfChecker makes the checks of one pool's service.
type selfChecker struct {
	options   Options
	transport *http.Transport
	anonymous func(context.Context) *attempt // the request without a token, made once
}

func newSelfChecker(o Options) *selfChecker {
	// A valid ca_file contains a certificate, so the transports have no error.
	c := &selfChecker{options: o, transport: cmp.Or(o.Transports, NewTransports(nil)).trusting(o.Tuning.CA).single}
	var once sync.Once
	var first *attempt
	c.anonymous = func(ctx context.Context) *attempt {
		once.Do(func() { first = c.try(ctx, "") })
		return first
	}
	return c
}

// checkConnection reports whether the service or the proxy could be reached.
func (c *selfChecker) checkConnection(ctx context.Context) selfcheck.Result {
	a := c.anonymous(ctx)
	host, variable := c.host(), c.proxyVariable()
	switch {
	case a.badProxy:
		return selfcheck.Failed("%v", a.err).WithHint("set it to a URL such as http://proxy.example:3128")
	case a.connected != "" && a.refusedByProxy():
		return selfcheck.Failed("the proxy %s does not connect to %s: %v", a.proxy.Host, host, a.err).
			WithHint("let the proxy allow this host, write its user and password into %s, "+
				"or name the host in NO_PROXY", variable)
	case a.connected != "" && a.proxy != nil:
		return selfcheck.Passed("connected to %s through the proxy %s, which %s names", host, a.proxy.Host, variable)
	case a.connected != "":
		return selfcheck.Passed("connected to %s at %s, without a proxy", host, a.connected)
	case a.err == nil: // the transport has not called ConnectDone
		return selfcheck.Passed("connected to %s", host)
	case a.proxy != nil:
		return selfcheck.Failed("cannot connect to the proxy %s: %v", a.proxy.Host, a.err).
			WithHint("correct %s, or name %s in NO_PROXY", variable, host)
	case errors.As(a.err, new(*net.DNSError)):
		return selfcheck.Failed("cannot find the address of %s: %v", host, a.err).
			WithHint("correct service_url, or the name servers of this machine; " + proxyHint)
	}
	return selfcheck.Failed("cannot connect to %s: %v", host, a.err).
		WithHint("correct service_url, or allow the connection in firewalls and network policies; " + proxyHint)
}

// proxyHint is the hint for networks that require a proxy.
const proxyHint = "set HTTPS_PROXY if only a proxy reaches the service"

// checkCertificate checks the certificate of the service.
func (c *selfChecker) checkCertificate(ctx context.Context) selfcheck.Result {
	a := c.anonymous(ctx)
	switch {
	case !c.encrypted() && selfcheck.OnLoopback(c.options.Identity.Service):
		return selfcheck.Passed("service_url is http:// on this machine, which needs no certificate")
	case !c.encrypted():
		return selfcheck.Warned("service_url is http://, so tokens and logs are sent without encryption").
			WithHint("set it to an https:// URL, unless that network is trusted")
	case a.handshake != nil:
		return c.judgeHandshake(a.handshake)
	case a.handshakeDone:
		return c.judgeChain(a.tls)
	case a.err != nil:
		return c.judgeHandshake(a.err)
	}
	return selfcheck.Skipped("no certificate was seen")
}

// judgeChain checks the expiry of a trusted certificate.
func (c *selfChecker) judgeChain(state *tls.ConnectionState) selfcheck.Result {
	if len(state.PeerCertificates) == 0 {
		return selfcheck.Skipped("no certificate was seen")
	}
	leaf := state.PeerCertificates[0]
	end := leaf.NotAfter.UTC().Format(time.RFC3339)
	if time.Until(leaf.NotAfter) < renewalNotice {
		return selfcheck.Warned("the certificate of %s is trusted and expires at %s", c.host(), end).
			WithHint("renew it before then")
	}
	return selfcheck.Passed("trusted, from %s, until %s", leaf.Issuer, end)
}

// judgeHandshake explains why no certificate was trusted.
func (c *selfChecker) judgeHandshake(err error) selfcheck.Result {
	failed := selfcheck.Failed("%s shows a certificate that is not trusted: %v", c.host(), err)
	unknown := errors.As(err, new(x509.UnknownAuthorityError))
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case unknown && c.options.Tuning.CA != "":
		return failed.WithHint("add the certificate of its authority to ca_file, whose certificates do not include it")
	case unknown:
		return failed.WithHint("name the certificate of its authority in ca_file; " +
			"if a proxy opens the encryption, that is the proxy's authority")
	case errors.As(err, new(x509.HostnameError)):
		return failed.WithHint("set service_url to a name that the certificate is for")
	case isInvalid && invalid.Reason == x509.Expired:
		return failed.WithHint("renew the certificate, or correct the clock of this machine")
	case errors.As(err, new(tls.RecordHeaderError)):
		return selfcheck.Failed("%s does not answer with TLS: %v", c.host(), err).
			WithHint("set service_url to the port for https, or to http:// if the service has no encryption")
	case untrusted(err):
		return failed.WithHint("correct service_url, or name the certificate of its authority in ca_file")
	}
	return selfcheck.Failed("the TLS handshake with %s failed: %v", c.host(), err).
		WithHint("check firewalls and proxies between this machine and the service")
}

// checkAnswer checks that the response comes from the service.
func (c *selfChecker) checkAnswer(ctx context.Context) selfcheck.Result {
	a := c.anonymous(ctx)
	service := c.options.Identity.Service
	format, isFormat := errors.AsType[*formatError](wantJSON(a.text))

	// There is no response, or it does not come from the service.
	switch {
	case a.err != nil:
		return selfcheck.Failed("%s does not answer: %v", service, a.err).
			WithHint("check service_url, the service, and firewalls and proxies between")
	case a.refusal != nil && a.refusal.Location != "":
		return selfcheck.Failed("%v", &redirectError{a.refusal, absentStatus}).
			WithHint("the agent follows no redirect, because its token would go with it")
	case a.status == http.StatusProxyAuthRequired:
		return selfcheck.Failed("the proxy requires a user and a password").
			WithHint("write them into %s, or name %s in NO_PROXY", c.proxyVariable(), c.host())
	case isFormat && (format.html || a.status/100 == 2):
		return selfcheck.Failed("status %d: %v", a.status, format)
	}
	switch a.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return selfcheck.Failed("%v", a.refusal).WithHint("check the service, and proxies before it")
	case http.StatusTooManyRequests:
		return selfcheck.Warned("%v", a.refusal).WithHint("wait, and start fewer agents from this address")
	}

	// The service refuses a request without a token.
	refuses := a.status == http.StatusUnauthorized || a.status == http.StatusForbidden
	if !refuses && a.status/100 != 5 {
		return selfcheck.Warned("%s answers with status %d to a request without a token, "+
			"which a service refuses with 401: it may be another server, or another path of it", service, a.status).
			WithHint("set service_url to the base URL of the service, to which the agent adds /api")
	}
	return selfcheck.Passed("%s answers as a service does, with status %d to a request without a token",
		service, a.status)
}

// checkClock compares this machine's clock with that of the service.
func (c *selfChecker) checkClock(ctx context.Context) selfcheck.Result {
	a := c.anonymous(ctx)
	date, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return selfcheck.Skipped("the response of the service has no Date header")
	}
	if age, err := time.ParseDuration(a.header.Get("Age") + "s"); err == nil { // the response is from a cache
		date = date.Add(age)
	}
	local := a.sent.Add(a.received.Sub(a.sent) / 2)
	skew, direction := local.Sub(date), "ahead of"
	if skew < 0 {
		skew, direction = skew.Abs(), "behind" // not -skew: the service's year may be 9999
	}
	const hint = "synchronise the clock of this machine, for example with chrony or systemd-timesyncd"
	const refused = "OIDC tokens and signed requests of jobs are refused"
	found := fmt.Sprintf("this machine's clock is %s %s the service's", skew.Round(time.Second), direction)
	switch {
	case skew < clockWarning:
		return selfcheck.Passed("this machine's clock differs from the service's by less than %s", clockWarning)
	case skew < clockLimit:
		return selfcheck.Warned("%s; from %s on, %s", found, clockLimit, refused).WithHint(hint)
	}
	return selfcheck.Failed("%s, more than the %s from which %s", found, clockLimit, refused).WithHint(hint)
}

// service returns the parsed URL of the service.
func (c *selfChecker) service() *url.URL {
	u, err := url.Parse(c.options.Identity.Service)
	if err != nil { // a configuration with such a URL is not valid
		return &url.URL{}
	}
	return u
}

func (c *selfChecker) host() string    { return c.service().Host }
func (c *selfChecker) encrypted() bool { return c.service().Scheme == "https" }

// proxyVariable names the variable that holds the proxy for the service.
func (c *selfChecker) proxyVariable() string {
	if c.encrypted() {
		return "HTTPS_PROXY"
	}
	return "HTTP_PROXY"
}
