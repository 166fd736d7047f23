package idtoken

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// TestSigner verifies a signed token with the key that the signer publishes.
func TestSigner(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	signer, err := NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := signer.Sign(map[string]any{
		"iss": "https://c.example/oidc", "aud": "org", "sub": "a:b", "exp": now.Add(time.Hour).Unix(),
	})
	if err != nil {
		t.Fatal(err)
	}
	jwks, err := json.Marshal(map[string]any{"keys": []PublicKey{signer.PublicKey()}})
	if err != nil {
		t.Fatal(err)
	}
	issuers, err := Open([]Issuer{{
		URL: "https://c.example/oidc", Keys: jwks, Claims: []Claim{{Name: "sub", Pattern: "a:b"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	check := func(token secret.String, audience string) error {
		read, err := Read(token)
		if err != nil {
			return err
		}
		_, err = issuers.Check(read, audience, now)
		return err
	}
	if err := check(token, "org"); err != nil {
		t.Errorf("the token is refused: %v", err)
	}
	if err := check(token, "other"); err == nil {
		t.Error("the token is accepted for another audience")
	}
	parts := strings.Split(token.Reveal(), ".")
	parts[1] = strings.ToUpper(parts[1])
	if err := check(secret.New(strings.Join(parts, ".")), "org"); err == nil {
		t.Error("a changed token is accepted")
	}
	if again, err := NewSigner(key); err != nil || again.PublicKey() != signer.PublicKey() {
		t.Errorf("the same key gives %v and %v, %v", again.PublicKey(), signer.PublicKey(), err)
	}
	if _, err := NewSigner([]byte("x")); err == nil {
		t.Error("bytes that are no key are accepted")
	}
}
