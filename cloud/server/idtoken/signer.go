package idtoken

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Signer signs ID tokens with RS256, which every verifier of ID tokens must support (OpenID Connect Core 1.0,
// section 15.1). It is safe for concurrent use.
type Signer struct {
	private *rsa.PrivateKey
	key     PublicKey
}

// PublicKey is a key of the JWKS document of a [Signer].
type PublicKey struct {
	Type string `json:"kty"`
	ID   string `json:"kid"`
	Use  string `json:"use"`
	Alg  string `json:"alg"`
	N    string `json:"n"`
	E    string `json:"e"`
}

// NewKey returns a new RSA key for [NewSigner], in PKCS #8 form. It is a secret.
func NewKey() ([]byte, error) {
	private, err := rsa.GenerateKey(rand.Reader, minRSA)
	if err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	return x509.MarshalPKCS8PrivateKey(private)
}

// NewSigner returns a signer with a key that NewKey has returned. The id of the key is its thumbprint (RFC 7638).
func NewSigner(key []byte) (*Signer, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	private, isRSA := parsed.(*rsa.PrivateKey)
	if err != nil || !isRSA {
		return nil, errors.New("read a signing key: it is not an RSA key in PKCS #8 form")
	}
	public := PublicKey{
		Type: "RSA", Use: "sig", Alg: algRSA,
		N: base64.RawURLEncoding.EncodeToString(private.N.Bytes()),
		E: base64.RawURLEncoding.EncodeToString(big.NewInt(int64(private.E)).Bytes()),
	}
	thumbprint := sha256.Sum256(fmt.Appendf(nil, `{"e":%q,"kty":"RSA","n":%q}`, public.E, public.N))
	public.ID = base64.RawURLEncoding.EncodeToString(thumbprint[:])
	return &Signer{private, public}, nil
}

// PublicKey returns the key that verifies the tokens.
func (s *Signer) PublicKey() PublicKey { return s.key }

// Sign returns a JWT in compact form with the JSON form of claims.
func (s *Signer) Sign(claims any) (secret.String, error) {
	header, err := json.Marshal(map[string]string{"alg": algRSA, "typ": "JWT", "kid": s.key.ID})
	if err != nil {
		return secret.String{}, fmt.Errorf("sign a token: %w", err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return secret.String{}, fmt.Errorf("sign a token: %w", err)
	}
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, s.private, crypto.SHA256, sum[:])
	if err != nil {
		return secret.String{}, fmt.Errorf("sign a token: %w", err)
	}
	return secret.New(signed + "." + base64.RawURLEncoding.EncodeToString(signature)), nil
}
