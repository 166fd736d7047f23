package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
)

const issuerURL = "https://issuer.example/tenant"

// provider is an OIDC provider with a key of each kind.
type provider struct {
	t   testing.TB
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
}

func newProvider(t testing.TB) *provider {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &provider{t, rsaKey, ecKey}
}

func b64(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

func (p *provider) rsaKey() object {
	return object{"kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": b64(p.rsa.N.Bytes()),
		"e": b64(big.NewInt(int64(p.rsa.E)).Bytes())}
}

func (p *provider) ecKey() object {
	point, err := p.ec.PublicKey.Bytes()
	if err != nil {
		p.t.Fatal(err)
	}
	return object{"kty": "EC", "kid": "e", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])}
}

// issuer returns the provider as an [idtoken.Issuer] with these public keys.
func (p *provider) issuer(keys ...object) idtoken.Issuer {
	p.t.Helper()
	document, err := json.Marshal(object{"keys": keys})
	if err != nil {
		p.t.Fatal(err)
	}
	return idtoken.Issuer{URL: issuerURL, Keys: document}
}

// allow makes the provider the only issuer of the options. Its document also has keys that are
// not for signatures of ID tokens.
func (p *provider) allow(o *Options) {
	o.Issuers = []idtoken.Issuer{p.issuer(
		object{"kty": "oct", "kid": "h", "k": "c2VjcmV0"}, object{"kty": "RSA", "kid": "enc", "use": "enc"},
		object{"kty": "OKP", "kid": "o", "crv": "Ed25519"},
		p.rsaKey(), p.ecKey())}
}

// allowIf makes the provider an issuer once for each of the conditions of --oidc-issuer.
func (p *provider) allowIf(conditions ...string) func(*Options) {
	return func(o *Options) {
		for _, one := range conditions {
			issuer, _, err := idtoken.ParseIssuer(issuerURL + "=file," + one)
			if err != nil {
				p.t.Fatal(err)
			}
			issuer.Keys = p.issuer(p.rsaKey(), p.ecKey()).Keys
			o.Issuers = append(o.Issuers, issuer)
		}
	}
}

// claims returns the claims of a valid token with changes; nil removes a claim.
func claims(changes object) object {
	all := object{"iss": issuerURL, "sub": "box", "aud": "urn:pulumi:org:organization",
		"exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range changes {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

func rsaHeader() object { return object{"alg": "RS256", "kid": "r", "typ": "JWT"} }
func ecHeader() object  { return object{"alg": "ES256", "kid": "e"} }

// token returns a signed token. Claims are an object or a JSON text.
func (p *provider) token(header object, claims any) string {
	p.t.Helper()
	part := func(v any) string {
		if text, ok := v.(string); ok {
			return b64([]byte(text))
		}
		text, err := json.Marshal(v)
		if err != nil {
			p.t.Fatal(err)
		}
		return b64(text)
	}
	signed := part(header) + "." + part(claims)
	return signed + "." + b64(p.sign(header["alg"], signed))
}

func (p *provider) sign(alg any, text string) []byte {
	p.t.Helper()
	sum := sha256.Sum256([]byte(text))
	if alg == "ES256" {
		r, s, err := ecdsa.Sign(rand.Reader, p.ec, sum[:])
		if err != nil {
			p.t.Fatal(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
	signature, err := rsa.SignPKCS1v15(nil, p.rsa, crypto.SHA256, sum[:])
	if err != nil {
		p.t.Fatal(err)
	}
	return signature
}

// exchange returns the form of a request for a token exchange. Changes are pairs of a field
// and its new value. An empty value removes the field.
func exchange(pool pool, token string, changes ...string) url.Values {
	form := url.Values{
		"grant_type": {grantExchange}, "audience": {"urn:pulumi:org:organization"}, "subject_token_type": {typeIDToken},
		"subject_token": {token}, "requested_token_type": {typeRunner}, "scope": {"runner:" + pool.ID},
	}
	for i := 0; i+1 < len(changes); i += 2 {
		if form.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			form.Del(changes[i])
		}
	}
	return form
}

// exchanged exchanges a valid token. It returns the pool with the new token, and the response.
func (w *world) exchanged(p pool, token string, changes ...string) (pool, exchangeView) {
	w.t.Helper()
	var view exchangeView
	w.want(200, "", "POST", "/api/oauth/token", exchange(p, token, changes...).Encode(), &view)
	return pool{ID: p.ID, Token: view.Token}, view
}
