package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestServeTakesTheTokensOfTheIssuersThatAreNamed(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	var flags, tokens []string
	for _, issuer := range []string{"https://one.example", "https://two.example"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "jwks.json")
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"keys":[{"kty":"RSA","n":%q,"e":"AQAB"}]}`, b64(key.N.Bytes())), 0o600); err != nil {
			t.Fatal(err)
		}
		signed := b64([]byte(`{"alg":"RS256"}`)) + "." +
			b64(fmt.Appendf(nil, `{"iss":%q,"aud":"urn:pulumi:org:organization","exp":%d}`, issuer, time.Now().Add(time.Hour).Unix()))
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--oidc-issuer", issuer+"="+file)
		tokens = append(tokens, signed+"."+b64(signature))
	}
	p := newPlace(t, flags...)
	made, _ := p.says(cli.ExitOK, "pool", "create", "p")
	var pools struct {
		All []struct{ ID string } `json:"agentPools"`
	}
	a := agent{p: p}
	if a.call(p.env["PULUMI_ACCESS_TOKEN"], "GET", "/api/orgs/organization/agent-pools", "", &pools) != 200 || len(pools.All) != 1 {
		t.Fatalf("the pools are %+v after %s", pools, made)
	}
	for i, token := range append(tokens, strings.Repeat("x", 100)) {
		form := url.Values{
			"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "audience": {"urn:pulumi:org:organization"},
			"subject_token_type": {"urn:ietf:params:oauth:token-type:id_token"}, "subject_token": {token},
			"requested_token_type": {"urn:pulumi:token-type:access_token:runner"}, "scope": {"runner:" + pools.All[0].ID},
		}
		var got struct {
			Token string `json:"access_token"`
		}
		want := 200
		if i == len(tokens) {
			want = 400
		}
		if code := a.call("", "POST", "/api/oauth/token", form.Encode(), &got); code != want {
			t.Errorf("token %d: %d, want %d", i, code, want)
		}
		if code := a.call(got.Token, "GET", "/api/deployments/poll", "", nil); want == 200 && code != 204 {
			t.Errorf("a poll with what token %d was exchanged for: %d", i, code)
		}
	}
}
