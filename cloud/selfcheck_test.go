package cloud_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/secret"
)

const poolToken = "pul-0123456789abcdef"

// interceptor answers a call in place of the service, or returns false.
type interceptor func(w http.ResponseWriter, r *http.Request) (done bool)

// service is a fake service with one queued job.
type service struct {
	mu     sync.Mutex
	calls  []string
	claims int
	skew   time.Duration // of its clock
	before interceptor
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(s.skew).UTC().Format(http.TimeFormat))
	if s.before != nil && s.before(w, r) {
		return
	}
	answer := func(code int, message string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "message": message})
	}
	authorized := r.Header.Get("Authorization") == "token "+poolToken
	switch {
	case r.URL.Path == "/api/oauth/token":
		text, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(text), "scope=runner%3Aours") {
			answer(http.StatusBadRequest, "no policy allows "+string(text))
			return
		}
		fmt.Fprintf(w, `{"access_token": %q, "expires_in": 7200}`, poolToken)
	case !authorized:
		answer(http.StatusUnauthorized, "no such token: "+r.Header.Get("Authorization"))
	case r.URL.Path == "/api/deployments/poll":
		s.claims++
		fmt.Fprint(w, `{"jobID": "1", "jobToken": "t"}`)
	default:
		answer(http.StatusNotFound, "no such deployment")
	}
}

// certificate describes the certificate of a test server. Its times are relative to now.
type certificate struct {
	name       string // DNS name; empty means the IP address 127.0.0.1
	begin, end time.Duration
}

// serve starts a server with the certificate. It returns its URL and its CA certificate.
func (c certificate) serve(t *testing.T, handler http.Handler) (url, authority string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority of the test"},
		NotBefore: time.Now().Add(c.begin), NotAfter: time.Now().Add(c.end),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if c.name != "" {
		template.IPAddresses, template.DNSNames = nil, []string{c.name}
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{signed}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
}

// proxy starts an HTTP proxy that answers each CONNECT with a status, and connects if the
// status is 200.
func proxy(t *testing.T, status int) *url.URL {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		upstream, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer upstream.Close()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(upstream, conn) }()
		_, _ = io.Copy(conn, upstream)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword("someone", "proxy-password")
	return address
}

// respond returns an interceptor that gives the same response to every call.
func respond(code int, text string) interceptor {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(code)
		fmt.Fprint(w, text)
		return true
	}
}

// withToken returns an interceptor of the calls that have a token.
func withToken(i interceptor) interceptor {
	return func(w http.ResponseWriter, r *http.Request) bool {
		return r.Header.Get("Authorization") != "" && i(w, r)
	}
}

// check serves the service with a valid certificate, and checks it. The edits are applied to the
// options.
func (s *service) check(t *testing.T, edits ...func(*cloud.Options)) map[string]selfcheck.Result {
	t.Helper()
	o := optionsFor(validYear.serve(t, s))
	for _, edit := range edits {
		edit(&o)
	}
	return check(t, o, false)
}

// check runs the checks as cmwa doctor does, and returns the results by name. It omits a
// check if the check that it needs failed, was skipped or was omitted.
func check(t *testing.T, o cloud.Options, exchange bool) map[string]selfcheck.Result {
	t.Helper()
	o.UserAgent, o.Log = "test/1", slog.New(slog.DiscardHandler)
	results := map[string]selfcheck.Result{}
	for _, c := range cloud.SelfChecks(o, exchange) {
		if need, ok := results[c.Needs]; c.Needs != "" &&
			(!ok || need.Level == selfcheck.LevelFailed || need.Level == selfcheck.LevelSkipped) {
			continue
		}
		results[c.Name] = c.Run(t.Context())
		text := results[c.Name].Message + results[c.Name].Hint
		if strings.Contains(text, poolToken) || strings.Contains(text, "proxy-password") ||
			strings.Contains(text, "eyJ") {
			t.Errorf("%s shows a secret: %s", c.Name, text)
		}
	}
	return results
}

// want checks the level of a result, and a part of its text.
func want(t *testing.T, results map[string]selfcheck.Result, name string, level selfcheck.Level, part string) {
	t.Helper()
	got, found := results[name]
	if !found || got.Level != level || !strings.Contains(got.Message+"; "+got.Hint, part) {
		t.Errorf("%s is %+v, want %s with %q; all results: %+v", name, got, level, part, results)
	}
}

// optionsFor returns the options for a service at a URL with a CA certificate.
func optionsFor(url, authority string) cloud.Options {
	return cloud.Options{
		Identity: runtime.Identity{Service: url, Organization: "acme", PoolID: "ours"},
		Tuning: runtime.Tuning{
			Token: secret.New(poolToken), CA: authority, Kinds: []runtime.Kind{runtime.Deployment},
			RequestTimeout: 10 * time.Second,
		},
	}
}

var validYear = certificate{begin: -time.Hour, end: 365 * 24 * time.Hour}

func TestSelfChecksService(t *testing.T) {
	t.Run("a working service passes, and no job is claimed", func(t *testing.T) {
		s := &service{}
		results := s.check(t)
		for _, name := range []string{
			"service-connection", "service-certificate", "service-answer", "service-clock", "service-token",
		} {
			want(t, results, name, selfcheck.LevelOK, "")
		}
		if len(s.calls) != 2 || s.claims != 0 {
			t.Errorf("got calls %q and %d claims, want two calls and no claim", s.calls, s.claims)
		}
	})
	t.Run("an address that does not exist", func(t *testing.T) {
		o := optionsFor("https://nowhere.invalid", "")
		o.Transports = cloud.NewTransports(&http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}
			},
		})
		want(t, check(t, o, false), "service-connection", selfcheck.LevelFailed,
			"cannot find the address of nowhere.invalid")
	})
	t.Run("a port without a listener", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		want(t, check(t, optionsFor(server.URL, ""), false), "service-connection", selfcheck.LevelFailed,
			"correct service_url")
	})
	t.Run("an authority that is not trusted", func(t *testing.T) {
		url, authority := validYear.serve(t, &service{})
		_, other := validYear.serve(t, &service{})
		want(t, check(t, optionsFor(url, ""), false), "service-certificate", selfcheck.LevelFailed,
			"name the certificate of its authority in ca_file")
		want(t, check(t, optionsFor(url, other), false), "service-certificate", selfcheck.LevelFailed,
			"add the certificate of its authority to ca_file")
		want(t, check(t, optionsFor(url, other+authority), false), "service-certificate", selfcheck.LevelOK,
			"the authority of the test")
	})
	for name, c := range map[string]struct {
		certificate certificate
		level       selfcheck.Level
		part        string
	}{
		"that has expired": {certificate{begin: -time.Hour, end: -time.Minute},
			selfcheck.LevelFailed, "renew the certificate, or correct the clock"},
		"that expires soon": {certificate{begin: -time.Hour, end: 24 * time.Hour},
			selfcheck.LevelWarning, "renew it"},
		"for another name": {certificate{name: "other.example", begin: -time.Hour, end: time.Hour},
			selfcheck.LevelFailed, "a name that the certificate is for"},
	} {
		t.Run("a certificate "+name, func(t *testing.T) {
			o := optionsFor(c.certificate.serve(t, &service{}))
			want(t, check(t, o, false), "service-certificate", c.level, c.part)
		})
	}
	t.Run("a server without TLS", func(t *testing.T) {
		server := httptest.NewServer(&service{})
		t.Cleanup(server.Close)
		results := check(t, optionsFor(strings.Replace(server.URL, "http:", "https:", 1), ""), false)
		want(t, results, "service-certificate", selfcheck.LevelFailed, "does not answer with TLS")
	})
	t.Run("a service without encryption on this machine", func(t *testing.T) {
		server := httptest.NewServer(&service{})
		t.Cleanup(server.Close)
		results := check(t, optionsFor(server.URL, ""), false)
		want(t, results, "service-certificate", selfcheck.LevelOK, "needs no certificate")
		want(t, results, "service-token", selfcheck.LevelOK, "accepts the token")
	})
}

func TestSelfChecksAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		before interceptor
		level  selfcheck.Level
		part   string
	}{
		"a page of a proxy": {respond(http.StatusOK, "<html>Please log in</html>"), selfcheck.LevelFailed, "HTML page"},
		"a page of a proxy instead of a refusal": {respond(http.StatusForbidden, "\n<!DOCTYPE html>"),
			selfcheck.LevelFailed, "HTML page"},
		"a success that is not JSON": {respond(http.StatusOK, "welcome"), selfcheck.LevelFailed, "not JSON"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "https://elsewhere.example"+r.URL.Path, http.StatusMovedPermanently)
			return true
		}, selfcheck.LevelFailed, "set it to https://elsewhere.example "},
		"a gateway without a service": {respond(http.StatusBadGateway, ""), selfcheck.LevelFailed, "502"},
		"a service that is busy":      {respond(http.StatusTooManyRequests, ""), selfcheck.LevelWarning, "429"},
		"another server": {respond(http.StatusNotFound, "404 page not found\n"),
			selfcheck.LevelWarning, "the base URL of the service"},
		"another server, with JSON": {respond(http.StatusOK, "{}"), selfcheck.LevelWarning, "200"},
		"a connection that closes without a response": {func(http.ResponseWriter, *http.Request) bool {
			panic(http.ErrAbortHandler)
		}, selfcheck.LevelFailed, "does not answer"},
		"a service that does not support the call": {respond(http.StatusInternalServerError, ""),
			selfcheck.LevelOK, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			want(t, (&service{before: c.before}).check(t), "service-answer", c.level, c.part)
		})
	}
}

func TestSelfChecksClock(t *testing.T) {
	for skew, c := range map[time.Duration]struct {
		level selfcheck.Level
		part  string
	}{
		0:                 {selfcheck.LevelOK, "less than 1m0s"},
		-30 * time.Second: {selfcheck.LevelOK, "less than 1m0s"},
		3 * time.Minute:   {selfcheck.LevelWarning, "behind the service's"},
		-3 * time.Minute:  {selfcheck.LevelWarning, "ahead of the service's"},
		-2 * time.Hour:    {selfcheck.LevelFailed, "more than the 5m0s"},
	} {
		t.Run(skew.String(), func(t *testing.T) {
			want(t, (&service{skew: skew}).check(t), "service-clock", c.level, c.part)
		})
	}
	t.Run("a response from a cache", func(t *testing.T) {
		aged := func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Age", "3600")
			return false
		}
		want(t, (&service{skew: -time.Hour, before: aged}).check(t), "service-clock", selfcheck.LevelOK, "")
	})
	t.Run("a difference that overflows a duration", func(t *testing.T) {
		distant := func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Date", "Fri, 31 Dec 9999 23:59:59 GMT")
			return false
		}
		want(t, (&service{before: distant}).check(t), "service-clock", selfcheck.LevelFailed, "behind the service's")
	})
	t.Run("a response without a time", func(t *testing.T) {
		undated := func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header()["Date"] = nil
			return false
		}
		want(t, (&service{before: undated}).check(t), "service-clock", selfcheck.LevelSkipped, "no Date")
	})
}

func TestSelfChecksToken(t *testing.T) {
	t.Run("a token that the service does not know", func(t *testing.T) {
		results := (&service{}).check(t, func(o *cloud.Options) { o.Tuning.Token = secret.New("an-old-token") })
		want(t, results, "service-token", selfcheck.LevelFailed, "check token, token_file or PULUMI_AGENT_TOKEN")
		if strings.Contains(results["service-token"].Message, "an-old-token") ||
			!strings.Contains(results["service-token"].Message, secret.Mark) {
			t.Errorf("a service that repeats the token makes the message %q, want the token replaced",
				results["service-token"].Message)
		}
	})
	t.Run("a service that repeats the token escaped, or in a broken response", func(t *testing.T) {
		for name, repeat := range map[string]interceptor{
			"escaped": respond(http.StatusUnauthorized, `{"message": "no such token: an\u002dold/token"}`),
			"as a broken response": func(w http.ResponseWriter, _ *http.Request) bool {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					panic(err)
				}
				defer conn.Close()
				fmt.Fprint(conn, "HTTP/1.1 401 Unauthorized\r\nan-old/token\r\n\r\n")
				return true
			},
		} {
			old := func(o *cloud.Options) { o.Tuning.Token = secret.New("an-old/token") }
			got := (&service{before: withToken(repeat)}).check(t, old)["service-token"]
			if got.Level != selfcheck.LevelFailed || strings.Contains(got.Message, "an-old/token") {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
	t.Run("a token without permission", func(t *testing.T) {
		s := &service{before: withToken(respond(http.StatusForbidden, ""))}
		want(t, s.check(t), "service-token", selfcheck.LevelWarning, "pool exists")
	})
	t.Run("a gateway that answers in place of the service", func(t *testing.T) {
		s := &service{before: withToken(respond(http.StatusServiceUnavailable, ""))}
		want(t, s.check(t), "service-token", selfcheck.LevelSkipped,
			"does not show whether the service accepts the token")
	})
	t.Run("a service that answers the same with any token", func(t *testing.T) {
		s := &service{before: respond(http.StatusNotFound, "")}
		want(t, s.check(t), "service-token", selfcheck.LevelSkipped, "may claim a job")
	})
}

func TestSelfChecksProxy(t *testing.T) {
	through := func(t *testing.T, proxy *url.URL) map[string]selfcheck.Result {
		return (&service{}).check(t, func(o *cloud.Options) {
			o.Transports = cloud.NewTransports(&http.Transport{Proxy: http.ProxyURL(proxy)})
		})
	}
	t.Run("a proxy that connects", func(t *testing.T) {
		results := through(t, proxy(t, http.StatusOK))
		want(t, results, "service-connection", selfcheck.LevelOK, "HTTPS_PROXY")
		want(t, results, "service-token", selfcheck.LevelOK, "accepts the token")
	})
	t.Run("a proxy that requires a password", func(t *testing.T) {
		want(t, through(t, proxy(t, http.StatusProxyAuthRequired)), "service-connection", selfcheck.LevelFailed,
			"Proxy Authentication Required")
	})
	t.Run("a proxy with an invalid URL", func(t *testing.T) {
		o := optionsFor("https://service.example", "")
		o.Transports = cloud.NewTransports(&http.Transport{Proxy: func(*http.Request) (*url.URL, error) {
			return nil, errors.New("invalid proxy address: http://someone:proxy-password@")
		}})
		want(t, check(t, o, false), "service-connection", selfcheck.LevelFailed,
			"HTTPS_PROXY is not the URL of a proxy")
	})
	t.Run("a variable that Go ignores", func(t *testing.T) {
		t.Setenv("HTTPS_PROXY", "http://someone:proxy-password@[")
		results := through(t, nil)
		want(t, results, "service-connection", selfcheck.LevelFailed, "HTTPS_PROXY is not the URL of a proxy")
		if text := fmt.Sprint(results); strings.Contains(text, "proxy-password") {
			t.Errorf("the results show the password: %s", text)
		}
	})
	t.Run("a proxy that does not run", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		address, _ := url.Parse(server.URL)
		want(t, through(t, address), "service-connection", selfcheck.LevelFailed, "cannot connect to the proxy")
	})
}

// webToken returns a file with an unsigned token that has these claims.
func webToken(t *testing.T, claims map[string]any) string {
	t.Helper()
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	file := filepath.Join(t.TempDir(), "token")
	token := part([]byte(`{"alg":"none"}`)) + "." + part(text) + ".c2lnbmVk\n"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSelfChecksOIDC(t *testing.T) {
	now := time.Now().Unix()
	good := map[string]any{
		"aud": []string{"urn:pulumi:org:acme"}, "exp": now + 600, "nbf": now - 600,
		"iss": "https://issuer", "sub": "us",
	}
	with := func(
		t *testing.T, file string, exchange bool, edit func(*cloud.Options),
	) (*service, map[string]selfcheck.Result) {
		s := &service{}
		o := optionsFor(validYear.serve(t, s))
		o.Tuning.Token, o.Tuning.OIDCTokenFile = secret.String{}, file
		if edit != nil {
			edit(&o)
		}
		return s, check(t, o, exchange)
	}
	t.Run("a valid token is not exchanged without --exchange", func(t *testing.T) {
		s, results := with(t, webToken(t, good), false, nil)
		want(t, results, "oidc-token", selfcheck.LevelOK, "issuer https://issuer and subject us")
		want(t, results, "service-token", selfcheck.LevelSkipped, "--exchange")
		if len(s.calls) != 1 {
			t.Errorf("the calls are %q, want one", s.calls)
		}
	})
	t.Run("with --exchange the new token is checked", func(t *testing.T) {
		s, results := with(t, webToken(t, good), true, nil)
		want(t, results, "service-token", selfcheck.LevelOK, "accepts the token")
		if s.claims != 0 {
			t.Error("a job was claimed")
		}
	})
	t.Run("an exchange that no policy allows, by a service that repeats the token", func(t *testing.T) {
		_, results := with(t, webToken(t, good), true, func(o *cloud.Options) { o.Identity.PoolID = "theirs" })
		want(t, results, "service-token", selfcheck.LevelFailed, "trusts its issuer")
	})
	for name, c := range map[string]struct {
		claims map[string]any
		level  selfcheck.Level
		part   string
	}{
		"expired": {map[string]any{"aud": "urn:pulumi:org:acme", "exp": now - 60}, selfcheck.LevelFailed, "expired at"},
		"not valid yet": {map[string]any{"aud": "urn:pulumi:org:acme", "nbf": now + 3600},
			selfcheck.LevelFailed, "clock"},
		"for another audience": {map[string]any{"aud": "sts.amazonaws.com", "exp": now + 60},
			selfcheck.LevelWarning, "urn:pulumi:org:acme"},
		"with no expiry": {map[string]any{"aud": "urn:pulumi:org:acme"}, selfcheck.LevelOK, "with no expiry"},
		"with an expiry after the year 9999": {map[string]any{"aud": "urn:pulumi:org:acme", "exp": 1e300},
			selfcheck.LevelOK, "9999"},
		"with an invalid claim": {map[string]any{"aud": 7}, selfcheck.LevelFailed, "no JSON Web Token"},
	} {
		t.Run("a token "+name, func(t *testing.T) {
			_, results := with(t, webToken(t, c.claims), false, nil)
			want(t, results, "oidc-token", c.level, c.part)
		})
	}
	t.Run("a file that is missing or is not a token", func(t *testing.T) {
		_, results := with(t, filepath.Join(t.TempDir(), "none"), false, nil)
		want(t, results, "oidc-token", selfcheck.LevelFailed, "the file does not exist")
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte("a.b.c"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, results = with(t, file, false, nil)
		want(t, results, "oidc-token", selfcheck.LevelFailed, "no JSON Web Token")
	})
}

func TestCheckProxy(t *testing.T) {
	for value, valid := range map[string]bool{
		"": true, "http://proxy.example:3128": true, "proxy.example:3128": true, "socks5://[::1]:1080": true,
		"http://someone:proxy-password@[": false, "http://someone:proxy-password@proxy.example:port": false,
		"http://someone:%zz@proxy.example": false, "http://": false, "http://proxy-password@": false,
	} {
		for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
			err := cloud.CheckProxy(func(asked string) (string, bool) {
				if asked != name {
					return "", false
				}
				return value, true
			})
			switch {
			case valid && err != nil:
				t.Errorf("%s=%q: %v", name, value, err)
			case !valid && (err == nil || err.Error() != name+" is not the URL of a proxy"):
				t.Errorf("%s=%q: the error is %v", name, value, err)
			}
		}
	}
}
