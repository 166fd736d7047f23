package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

func TestServeOIDCIssuer(t *testing.T) {
	b64 := base64.RawURLEncoding.EncodeToString
	var flags, tokens []string
	for _, issuer := range []string{"https://one.example", "https://two.example"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "jwks.json")
		if err := os.WriteFile(file, fmt.Appendf(nil, `{"keys":[{"kty":"RSA","n":%q,"e":"AQAB"}]}`, b64(key.N.Bytes())),
			0o600); err != nil {
			t.Fatal(err)
		}
		signed := b64([]byte(`{"alg":"RS256"}`)) + "." +
			b64(fmt.Appendf(nil, `{"iss":%q,"aud":"urn:pulumi:org:organization","exp":%d}`, issuer,
				time.Now().Add(time.Hour).Unix()))
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--oidc-issuer", issuer+"="+file)
		tokens = append(tokens, signed+"."+b64(signature))
	}
	p := newService(t, flags...)
	made, _ := p.run(cli.ExitOK, "pool", "create", "p")
	var pools struct {
		All []struct{ ID string } `json:"agentPools"`
	}
	a := agent{p: p}
	if a.call(p.env["PULUMI_ACCESS_TOKEN"], "GET", "/api/orgs/organization/agent-pools", "", &pools) != 200 ||
		len(pools.All) != 1 {
		t.Fatalf("the pools are %+v after %s", pools, made)
	}
	for i, token := range append(tokens, strings.Repeat("x", 100)) {
		form := url.Values{
			"grant_type":         {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"audience":           {"urn:pulumi:org:organization"},
			"subject_token_type": {"urn:ietf:params:oauth:token-type:id_token"}, "subject_token": {token},
			"requested_token_type": {"urn:pulumi:token-type:access_token:runner"},
			"scope":                {"runner:" + pools.All[0].ID},
		}
		var got struct {
			Token string `json:"access_token"`
		}
		want := 200
		if i == len(tokens) {
			want = 400
		}
		if code := a.call("", "POST", "/api/oauth/token", form.Encode(), &got); code != want {
			t.Errorf("exchange of OIDC token %d: got status %d, want %d", i, code, want)
		}
		if code := a.call(got.Token, "GET", "/api/deployments/poll", "", nil); want == 200 && code != 204 {
			t.Errorf("a poll with the pool token for OIDC token %d: got %d, want 204", i, code)
		}
	}
}

func TestServePublicIssuer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const github = "https://token.actions.githubusercontent.com"
	for issuer, c := range map[string]struct {
		code int
		want string
	}{
		github + "=" + file: {cli.ExitFailure, "require a claim that identifies yours, such as --oidc-issuer '" +
			github + "=JWKS_FILE,sub=repo:acme/*'"},
		github + "=" + file + ",sub=repo:acme*":  {cli.ExitFailure, "also matches tokens of other customers"},
		github + "=" + file + ",sub=repo:acme/*": {cli.ExitFailure, "no key for signatures"},
		github + "=" + file + ",v2.json":         {cli.ExitUsage, "double quotes"},
	} {
		var out, log strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		code := run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"),
			"--oidc-issuer", issuer}, stdio{os.LookupEnv, &out, &log})
		cancel()
		if code != c.code || !strings.Contains(log.String(), c.want) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", issuer, code, c.code, c.want, log.String())
		}
	}
}

func TestListenAddress(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv6zero, Port: 4000}
	for address, want := range map[string]string{
		"0.0.0.0:0": "0.0.0.0:4000", "localhost:0": "localhost:4000", "[::1]:0": "[::1]:4000", ":0": "[::]:4000",
	} {
		if got := listenAddress(address, bound); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
