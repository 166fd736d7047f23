package server

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cloud/server/idtoken"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// TestJobOIDCToken verifies the token of a job as a cloud provider does: with the keys at the jwks_uri of its issuer.
func TestJobOIDCToken(t *testing.T) {
	const host = "http://example.com" // of requests of httptest
	const subject = "pulumi:deploy:org:organization:project:project:stack:s:operation:refresh:scope:write"
	w := newWorld(t)
	w.server.signs = nil
	p, at := w.pool("p"), w.stack("s")
	id := w.deploy(at, object{"operation": "detect-drift", "cmwaTimeout": "1h", "cmwaSteps": []object{{"run": "true"}}})
	token := secret.New(w.mustClaim(p).job.OIDCToken)

	verify := func() map[string]any {
		t.Helper()
		var discovery struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		w.want(200, "", "GET", "/oidc/.well-known/openid-configuration", nil, &discovery)
		if got := discovery.Keys; got != host+"/oidc/.well-known/jwks" {
			t.Errorf("jwks_uri is %v", got)
		}
		keys := w.want(200, "", "GET", "/oidc/.well-known/jwks", nil, nil)
		issuers, err := idtoken.Open([]idtoken.Issuer{{
			URL: discovery.Issuer, Keys: []byte(keys.body), Claims: []idtoken.Claim{{Name: "sub", Pattern: subject}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		read, err := idtoken.Read(token)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := issuers.Check(read, "organization", time.Now()); err != nil {
			t.Errorf("the token of the job is refused: %v", err)
		}
		if _, err := issuers.Check(read, "organization", time.Now().Add(time.Hour)); err == nil {
			t.Error("the token is valid for longer than the job")
		}
		return claimsOf(t, token)
	}
	claims := verify()
	for name, want := range map[string]any{
		"org": "organization", "project": "project", "stack": "s", "stackId": "organization/project/s",
		"operation": "refresh", "scope": "write", "deployment": id,
	} {
		if claims[name] != want {
			t.Errorf("claim %s is %v, want %v", name, claims[name], want)
		}
	}
	w.restart()
	w.server.signs = nil
	verify()
}

// claimsOf returns the claims of a token without verifying it.
func claimsOf(t *testing.T, token secret.String) (claims map[string]any) {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Reveal(), ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}
