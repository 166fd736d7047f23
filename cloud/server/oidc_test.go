package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestExchangeToken(t *testing.T) {
	t.Parallel()
	t.Run("the exchanged token can poll", func(t *testing.T) {
		provider := newProvider(t)
		w := newWorld(t, provider.allow)
		p, at := w.pool("p"), w.stack("s")
		for _, good := range []struct {
			what     string
			token    string
			changes  []string
			lifetime int64
		}{
			{"RSA", provider.token(rsaHeader(), claims(nil)), nil, 7200},
			{"an elliptic curve", provider.token(ecHeader(), claims(nil)), []string{"expiration", "60"}, 60},
			{"two audiences", provider.token(ecHeader(),
				claims(object{"aud": []string{"other", "urn:pulumi:org:organization"}})), nil, 7200},
			{"clocks that differ by less than a minute", provider.token(ecHeader(), claims(object{
				"nbf": time.Now().Unix() + 50,
				"iat": time.Now().Unix() + 50})), nil, 7200},
			{"a lifetime above the maximum", provider.token(ecHeader(), claims(nil)), []string{"expiration",
				"4000000000"},
				25 * 3600},
		} {
			holder, view := w.exchanged(p, good.token, good.changes...)
			if !strings.HasPrefix(view.Token, "pul-") || view.Type != "token" || view.IssuedType != typeRunner ||
				view.Expires != good.lifetime || view.Scope != "runner:"+p.ID {
				t.Errorf("%s: got type %s, issued type %s, lifetime %d, scope %s", good.what, view.Type,
					view.IssuedType,
					view.Expires, view.Scope)
			}
			id := w.deploy(at, steps(1))
			c := w.mustClaim(holder)
			if c.job.TypeSpecificID != id {
				t.Errorf("%s: claimed %s, want %s", good.what, c.job.TypeSpecificID, id)
			}
			c.runs(0, 1)
		}
		asJSON := object{"expiration": 90}
		for name, values := range exchange(p, provider.token(rsaHeader(), claims(nil))) {
			asJSON[name] = values[0]
		}
		var view exchangeView
		w.want(200, "", "POST", "/api/oauth/token", asJSON, &view)
		if view.Expires != 90 || w.ask(view.Token, "GET", "/api/deployments/poll", nil).code != 204 {
			t.Errorf("after a request in JSON, the lifetime is %d", view.Expires)
		}
	})

	t.Run("invalid requests and invalid tokens are denied", func(t *testing.T) {
		provider, foreign := newProvider(t), newProvider(t)
		w := newWorld(t, provider.allow)
		p := w.pool("p")
		now := time.Now().Unix()
		good := provider.token(rsaHeader(), claims(nil))
		parts := strings.Split(good, ".")
		ecGood := provider.token(ecHeader(), claims(nil))
		mac := hmac.New(sha256.New, provider.rsa.N.Bytes())
		hmacSigned := b64([]byte(`{"alg":"HS256","kid":"r"}`)) + "." + parts[1]
		mac.Write([]byte(hmacSigned))
		mislabelled := b64([]byte(`{"alg":"ES256","kid":"r"}`)) + "." + parts[1]
		mislabelled += "." + b64(provider.sign("RS256", mislabelled))
		const grant, request = "invalid_grant", "invalid_request"

		for _, wrong := range []struct {
			what, oauth, token string
			changes            []string
		}{
			{"no grant type", request, good, []string{"grant_type", ""}},
			{"a refresh", "unsupported_grant_type", good, []string{"grant_type", "refresh_token"}},
			{"another type of token", request, good, []string{"subject_token_type",
				"urn:ietf:params:oauth:token-type:jwt"}},
			{"a request for a team's token", request, good, []string{"requested_token_type",
				"urn:pulumi:token-type:access_token:team", "scope", "team:x"}},
			{"a type without its prefix", request, good, []string{"requested_token_type", "runner"}},
			{"a personal token, which no rule allows", "invalid_scope", good, []string{"requested_token_type",
				typePersonal, "scope", "user:local"}},
			{"a personal token without a user", "invalid_scope", good, []string{"requested_token_type", typePersonal}},
			{"a token of the organization, which no rule allows", "invalid_scope", good, []string{
				"requested_token_type", typeOrganization, "scope", ""}},
			{"a token of the organization with a pool", "invalid_scope", good, []string{"requested_token_type",
				typeOrganization}},
			{"no audience", "invalid_target", good, []string{"audience", ""}},
			{"a foreign audience", "invalid_target", good, []string{"audience", "organization"}},
			{"another organization", grant, good, []string{"audience", "urn:pulumi:org:other"}},
			{"an unknown organization", "invalid_scope", provider.token(rsaHeader(),
				claims(object{"aud": "urn:pulumi:org:other"})), []string{"audience", "urn:pulumi:org:other"}},
			{"no scope", "invalid_scope", good, []string{"scope", ""}},
			{"a user's scope", "invalid_scope", good, []string{"scope", "user:local"}},
			{"an unknown pool", "invalid_scope", good, []string{"scope", "runner:none"}},
			{"a lifetime of 0", request, good, []string{"expiration", "0"}},
			{"a lifetime that is not a number", request, good, []string{"expiration", "2h"}},
			{"no token", request, "", nil},
			{"a token that is plain text", grant, "secret-text", nil},
			{"four parts", grant, good + ".", nil},
			{"a token too large", grant, strings.Repeat("x", idtoken.MaxToken+1), nil},
			{"a line break in the token", grant, parts[0] + "\n." + parts[1] + "." + parts[2], nil},
			{"no signature", grant, parts[0] + "." + parts[1] + ".", nil},
			{"alg none", grant, b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", nil},
			{"alg HS256 with the public key", grant, hmacSigned + "." + b64(mac.Sum(nil)), nil},
			{"alg RS512", grant, provider.token(object{"alg": "RS512", "kid": "r"}, claims(nil)), nil},
			{"the other key's alg", grant, provider.token(object{"alg": "ES256", "kid": "r"}, claims(nil)), nil},
			{"a good signature of another alg", grant, mislabelled, nil},
			{"an unknown kid", grant, provider.token(object{"alg": "RS256", "kid": "x"}, claims(nil)), nil},
			{"no kid among two keys", grant, provider.token(object{"alg": "RS256"}, claims(nil)), nil},
			{"an encryption key's kid", grant, provider.token(object{"alg": "RS256", "kid": "enc"}, claims(nil)), nil},
			{"critical extensions", grant, provider.token(object{"alg": "RS256", "kid": "r", "crit": []string{"x"}},
				claims(nil)), nil},
			{"a foreign issuer's RSA key", grant, foreign.token(rsaHeader(), claims(nil)), nil},
			{"a foreign issuer's EC key", grant, foreign.token(ecHeader(), claims(nil)), nil},
			{"another token's signature", grant, parts[0] + "." + strings.Split(ecGood, ".")[1] + "x." + parts[2], nil},
			{"claims of another token", grant, parts[0] + "." +
				b64([]byte(`{"iss":"`+issuerURL+`","aud":"urn:pulumi:org:organization","exp":99999999999}`)) + "." +
				parts[2], nil},
			{"half an EC signature", grant, ecGood[:len(ecGood)-43], nil},
			{"another issuer", grant, provider.token(rsaHeader(), claims(object{"iss": issuerURL + "/"})), nil},
			{"no issuer", grant, provider.token(rsaHeader(), claims(object{"iss": nil})), nil},
			{"an issuer that is a list", grant, provider.token(rsaHeader(), claims(object{"iss": []string{issuerURL}})),
				nil},
			{"another audience", grant, provider.token(rsaHeader(),
				claims(object{"aud": "urn:pulumi:org:organization2"})),
				nil},
			{"no aud", grant, provider.token(rsaHeader(), claims(object{"aud": nil})), nil},
			{"audiences that are numbers", grant, provider.token(rsaHeader(), claims(object{"aud": []int{1}})), nil},
			{"expired", grant, provider.token(rsaHeader(), claims(object{"exp": now - 1})), nil},
			{"no expiry", grant, provider.token(rsaHeader(), claims(object{"exp": nil})), nil},
			{"an expiry that is text", grant, provider.token(rsaHeader(), claims(object{"exp": "9999999999"})), nil},
			{"an expiry after the year 9999", grant, provider.token(rsaHeader(), claims(object{"exp": 1e300})), nil},
			{"not valid yet", grant, provider.token(rsaHeader(), claims(object{"nbf": now + 120})), nil},
			{"issued in the future", grant, provider.token(rsaHeader(), claims(object{"iat": now + 120})), nil},
			{"a claim that occurs twice", grant, provider.token(rsaHeader(), `{"iss":"`+issuerURL+
				`","aud":"x","aud":"urn:pulumi:org:organization","exp":99999999999}`), nil},
			{"a claim in capitals", grant, provider.token(rsaHeader(), `{"iss":"`+issuerURL+
				`","AUD":"urn:pulumi:org:organization","exp":99999999999}`), nil},
			{"two values for claims", grant, provider.token(rsaHeader(), `{"iss":"`+issuerURL+
				`","aud":"urn:pulumi:org:organization","exp":99999999999}{}`), nil},
		} {
			got := w.ask("", "POST", "/api/oauth/token", exchange(p, wrong.token, wrong.changes...).Encode())
			checkDenial(t, wrong.what, got, 400, wrong.oauth)
			if len(wrong.token) > 20 && strings.Contains(got.body, wrong.token[:20]) ||
				strings.Contains(got.body, "secret-text") {
				t.Errorf("%s: the token is in the response", wrong.what)
			}
		}
		for what, body := range map[string]string{
			"a field twice":          exchange(p, good).Encode() + "&scope=runner:x",
			"a broken form":          "grant_type=%zz",
			"broken JSON":            `{"grant_type":`,
			"a JSON field twice":     `{"scope":"a","scope":"b"}`,
			"a number for a scope":   `{"scope":1}`,
			"nothing":                "",
			"a body that is no text": "\xff",
		} {
			checkDenial(t, what, w.ask("", "POST", "/api/oauth/token", body), 400, request)
		}
		checkDenial(t, "a huge body", w.ask("", "POST", "/api/oauth/token", strings.Repeat("x", maxExchangeBody+1)),
			413,
			request)
		if got := w.tokens(); got != 2 { // the user's and the pool's
			t.Errorf("after the denied requests there are %d tokens, want 2", got)
		}
	})

	t.Run("without an issuer every exchange is denied", func(t *testing.T) {
		w := newWorld(t)
		got := w.ask("", "POST", "/api/oauth/token", exchange(w.pool("p"), newProvider(t).token(rsaHeader(),
			claims(nil))).Encode())
		checkDenial(t, "an exchange", got, 403, "unauthorized_client")
		if !strings.Contains(got.body, "--oidc-issuer") {
			t.Errorf("the response does not contain the hint: %s", got.body)
		}
	})

	t.Run("a token is exchanged for the access tokens that its claims allow", func(t *testing.T) {
		provider := newProvider(t)
		w := newWorld(t, provider.allowIf(
			"sub=ci,token=member", "sub=root,token=admin", "sub=me,token=user:local", "sub=me,token=user:gone"))
		p := w.pool("p")
		before := len(w.accessTokens(userTokens))
		for _, c := range []struct {
			sub, typ, scope string
			kind            kind // empty if it is denied
		}{
			{"ci", typeOrganization, "", memberToken},
			{"ci", typeOrganization, "admin", ""},
			{"root", typeOrganization, "", memberToken},
			{"root", typeOrganization, "admin", administratorToken},
			{"root", typePersonal, "user:local", ""},
			{"me", typePersonal, "user:local", userToken},
			{"me", typePersonal, "user:gone", ""},
			{"me", typePersonal, "user:other", ""},
			{"me", typeOrganization, "", ""},
			{"me", typeRunner, "runner:" + p.ID, ""},
		} {
			what := c.sub + " " + c.scope
			token := provider.token(rsaHeader(), claims(object{"sub": c.sub}))
			got := w.ask("", "POST", "/api/oauth/token", exchange(p, token,
				"requested_token_type", c.typ, "scope", c.scope, "expiration", "60").Encode())
			if c.kind == "" {
				checkDenial(t, what, got, 400, "invalid_scope")
				continue
			}
			var view exchangeView
			if err := json.Unmarshal([]byte(got.body), &view); err != nil || view.Scope != c.scope ||
				view.IssuedType != c.typ || view.Expires != 60 || !strings.HasPrefix(view.Token, c.kind.prefix()) {
				t.Errorf("%s: %d %s", what, got.code, got.body)
			}
			code := 403
			if c.kind != memberToken {
				code = 200
			}
			w.want(code, view.Token, "PATCH", "/api/orgs/organization", object{}, nil)
		}
		if after := len(w.accessTokens(userTokens)); after != before {
			t.Errorf("the list of tokens has %d entries, want %d", after, before)
		}
	})

	t.Run("a token needs the required claims of its issuer, and is valid for the issuer's pool", func(t *testing.T) {
		provider, log := newProvider(t), &strings.Builder{}
		w := newWorld(t, provider.allowIf("sub=repo:acme/infra:*,pool=infra", "sub=repo:acme/web:*,pool=web"),
			func(o *Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
		infra, web, other := w.pool("infra"), w.pool("web"), w.pool("other")
		for _, c := range []struct {
			sub   string
			pool  pool
			oauth string // of the denial
		}{
			{"repo:acme/infra:main", infra, ""},
			{"repo:acme/web:main", web, ""},
			{"repo:acme/infra:main", web, "invalid_scope"},
			{"repo:acme/infra:main", other, "invalid_scope"},
			{"repo:acme/infra-fork:main", infra, "invalid_grant"},
			{"repo:evil/infra:main", infra, "invalid_grant"},
		} {
			token := provider.token(ecHeader(), claims(object{"sub": c.sub}))
			if c.oauth == "" {
				holder, _ := w.exchanged(c.pool, token)
				w.want(204, holder.Token, "GET", "/api/deployments/poll", nil, nil)
				continue
			}
			got := w.ask("", "POST", "/api/oauth/token", exchange(c.pool, token).Encode())
			checkDenial(t, c.sub, got, 400, c.oauth)
			if strings.Contains(got.body, "acme") {
				t.Errorf("%s: the response contains the required claim: %s", c.sub, got.body)
			}
		}
		for _, want := range []string{"claim sub is", "repo:evil/infra:main", "requires repo:acme/web:*",
			"pool=other"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%q is not in the log:\n%s", want, log)
			}
		}
	})

	t.Run("the exchanged token expires and is deleted", func(t *testing.T) {
		provider := newProvider(t)
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, provider.allow)
			ctx, stop := context.WithCancel(context.Background())
			var background sync.WaitGroup
			background.Go(func() { _ = w.server.Run(ctx) })
			defer func() {
				stop()
				background.Wait()
				w.close()
			}()
			p := w.pool("p")
			short, _ := w.exchanged(p, provider.token(rsaHeader(), claims(nil)), "expiration", "300")
			long, _ := w.exchanged(p, provider.token(rsaHeader(), claims(nil)))
			time.Sleep(299 * time.Second)
			w.want(204, short.Token, "GET", "/api/deployments/poll", nil, nil)
			time.Sleep(time.Second)
			w.want(401, short.Token, "GET", "/api/deployments/poll", nil, nil)
			time.Sleep(time.Minute)
			if got := w.tokens(); got != 3 { // of the user, of the pool, and the exchanged token long
				t.Errorf("there are %d tokens, want 3", got)
			}
			w.want(204, long.Token, "GET", "/api/deployments/poll", nil, nil)

			// Two hours have 1440 ticks of Run. One call replaces the last of them.
			stop()
			background.Wait()
			time.Sleep(2 * time.Hour)
			w.want(401, long.Token, "GET", "/api/deployments/poll", nil, nil)
			w.want(204, p.Token, "GET", "/api/deployments/poll", nil, nil)
			w.expireAfter(0)
			if w.tokens() != 2 {
				t.Errorf("there are %d tokens, want 2", w.tokens())
			}
		})
	})

	t.Run("the exchanged token stays valid after a restart, until its pool is deleted", func(t *testing.T) {
		provider := newProvider(t)
		w := newWorld(t, provider.allow)
		p, other := w.pool("p"), w.pool("other")
		a, _ := w.exchanged(p, provider.token(rsaHeader(), claims(nil)))
		b, _ := w.exchanged(other, provider.token(ecHeader(), claims(nil)))
		w.restart() // without the issuer: exchanged tokens stay valid
		w.want(204, a.Token, "GET", "/api/deployments/poll", nil, nil)
		w.want(200, w.user, "GET", "/api/orgs/organization/agent-pools/"+p.ID, nil, nil)
		w.want(403, a.Token, "GET", "/api/orgs/organization/agent-pools/"+p.ID, nil, nil)
		w.want(204, w.user, "DELETE", "/api/orgs/organization/agent-pools/"+p.ID+"?force=true", nil, nil)
		w.want(401, a.Token, "GET", "/api/deployments/poll", nil, nil)
		w.want(204, b.Token, "GET", "/api/deployments/poll", nil, nil)
		w.close()
		for _, file := range []string{"cloud.db", "cloud.db-wal"} {
			text, err := os.ReadFile(filepath.Join(w.directory, file))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if strings.Contains(string(text), b.Token) {
				t.Errorf("%s contains the token in plain text", file)
			}
		}
	})

	t.Run("an agent with a token file can claim", func(t *testing.T) {
		provider := newProvider(t)
		w := newWorld(t, provider.allow)
		p := w.pool("p")
		id := w.deploy(w.stack("s"), steps(1))
		web := httptest.NewServer(w.handler)
		defer web.Close()
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(provider.token(ecHeader(), claims(nil))+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		options := cloud.Options{
			Identity: runtime.Identity{Service: web.URL, Organization: "organization", PoolID: p.ID,
				Credentials: "oidc"},
			Tuning: runtime.Tuning{
				OIDCTokenFile: file, TokenExpiration: time.Hour, Kinds: []runtime.Kind{runtime.Deployment},
				RequestTimeout:  30 * time.Second,
				PollingInterval: time.Second, BreakerFailures: 5, BreakerTimeout: time.Minute,
			},
			UserAgent: "test/1", Transports: cloud.NewTransports(web.Client().Transport.(*http.Transport)),
			Log: slog.New(slog.DiscardHandler),
		}
		claim, err := cloud.New(options).Claim(t.Context())
		if err != nil || claim.Job == nil || claim.Job.WorkflowID != id {
			t.Fatalf("claimed %+v: %v", claim, err)
		}
		if err := os.WriteFile(file, []byte(newProvider(t).token(ecHeader(), claims(nil))), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cloud.New(options).Claim(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "signature is wrong") {
			t.Errorf("with a foreign token the agent reports %v", err)
		}
	})
}

func checkDenial(t *testing.T, what string, got answer, code int, oauth string) {
	t.Helper()
	var view denialView
	var plain cloud.ErrorBody
	if json.Unmarshal([]byte(got.body), &view) != nil || json.Unmarshal([]byte(got.body), &plain) != nil {
		t.Fatalf("%s: the response is %s", what, got.body)
	}
	if got.code != code || view.Error != oauth || view.Description == "" || plain.Code != code ||
		plain.Message != http.StatusText(code)+": "+view.Description {
		t.Errorf("%s: %d %s, want %d %s", what, got.code, got.body, code, oauth)
	}
}

// tokens returns the number of tokens in the database.
func (w *world) tokens() (n int) {
	w.t.Helper()
	w.read([]any{&n}, `SELECT count(*) FROM tokens`)
	return n
}

func TestOpenIssuers(t *testing.T) {
	p := newProvider(t)
	with := func(key object, name, value string) object { key[name] = value; return key }
	for what, c := range map[string]struct {
		issuers []idtoken.Issuer
		want    string
	}{
		"an invalid URL": {[]idtoken.Issuer{{URL: "issuer", Keys: p.issuer(p.rsaKey()).Keys}},
			"use the iss of its tokens"},
		"an issuer given twice": {[]idtoken.Issuer{p.issuer(p.rsaKey()), p.issuer(p.ecKey())}, "more than once"},
		"no document": {[]idtoken.Issuer{{URL: issuerURL, Keys: []byte("PEM")}},
			"not a JWKS document"},
		"no keys":                       {[]idtoken.Issuer{p.issuer()}, "no key"},
		"keys of other algorithms only": {[]idtoken.Issuer{p.issuer(with(p.rsaKey(), "alg", "RS512"))}, "no key"},
		"two keys with one kid":         {[]idtoken.Issuer{p.issuer(p.rsaKey(), with(p.ecKey(), "kid", "r"))}, "kid"},
		"a private key":                 {[]idtoken.Issuer{p.issuer(with(p.rsaKey(), "d", "AQAB"))}, "private"},
		"a small key":                   {[]idtoken.Issuer{p.issuer(with(p.rsaKey(), "n", "AQAB"))}, "bits"},
		"an even exponent":              {[]idtoken.Issuer{p.issuer(with(p.rsaKey(), "e", "BA"))}, "exponent"},
		"a point off the curve": {[]idtoken.Issuer{p.issuer(with(p.ecKey(), "y", b64(make([]byte, 32))))},
			"point"},
		"a coordinate that is too short": {[]idtoken.Issuer{p.issuer(with(p.ecKey(), "y", "AQAB"))}, "32 bytes"},
	} {
		_, err := Open(t.Context(), Options{Directory: t.TempDir(), Issuers: c.issuers})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func TestIssuerKeyWithoutKid(t *testing.T) {
	p := newProvider(t)
	nameless := p.ecKey()
	delete(nameless, "kid")
	for what, c := range map[string]struct{ key, header object }{
		"a token without a kid": {p.ecKey(), object{"alg": "ES256"}},
		"a key without a kid":   {nameless, ecHeader()},
	} {
		issuers, err := idtoken.Open([]idtoken.Issuer{p.issuer(c.key)})
		if err != nil {
			t.Fatal(err)
		}
		token, err := idtoken.Read(secret.New(p.token(c.header, claims(nil))))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := issuers.Check(token, "urn:pulumi:org:organization", time.Now()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
