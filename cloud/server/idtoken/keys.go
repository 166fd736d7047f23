package idtoken

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// issuerKey is a key with its algorithm.
type issuerKey struct {
	id     string // kid; may be empty
	alg    string // RS256 or ES256
	public crypto.PublicKey
}

// Supported signature algorithms (RFC 7518, section 3.1). Providers of ID tokens must
// offer RS256, and those with elliptic curves use ES256.
const (
	algRSA = "RS256"
	algEC  = "ES256"
)

// Limits of RSA keys in bits. Smaller keys are not safe, and larger ones let
// unauthenticated callers use too much processor time.
const (
	minRSA = 2048
	maxRSA = 8192
)

// jwk is a key of a JWKS document (RFC 7517).
type jwk struct {
	Type    string `json:"kty"`
	ID      string `json:"kid"`
	Use     string `json:"use"`
	Alg     string `json:"alg"`
	N       string `json:"n"`
	E       string `json:"e"`
	Curve   string `json:"crv"`
	X       string `json:"x"`
	Y       string `json:"y"`
	Private string `json:"d"`
}

// readKeys reads a JWKS document. It skips keys for other algorithms and for other uses.
// An invalid key is an error, and so is a document without a usable key.
func readKeys(document []byte) ([]issuerKey, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if json.Unmarshal(document, &set) != nil {
		return nil, errors.New("the keys are not a JWKS document: use the one at the issuer's jwks_uri")
	}
	var keys []issuerKey
	for i, k := range set.Keys {
		if k.Private != "" {
			return nil, fmt.Errorf("key %d of the JWKS document is a private key: use the public keys", i)
		}
		if k.Use != "" && k.Use != "sig" {
			continue
		}

		read := issuerKey{id: k.ID}
		var err error
		switch {
		case k.Type == "RSA" && (k.Alg == "" || k.Alg == algRSA):
			read.alg = algRSA
			read.public, err = k.rsa()
		case k.Type == "EC" && k.Curve == "P-256" && (k.Alg == "" || k.Alg == algEC):
			read.alg = algEC
			read.public, err = k.ec()
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %d of the JWKS document: %w", i, err)
		}
		for _, other := range keys {
			if other.id == read.id {
				return nil, fmt.Errorf("key %d of the JWKS document has the kid %q of another key", i, read.id)
			}
		}
		keys = append(keys, read)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("the JWKS document has no key for signatures: %s and %s (P-256) are supported",
			algRSA, algEC)
	}
	return keys, nil
}

func (k jwk) rsa() (*rsa.PublicKey, error) {
	n, err := decodeBase64URL(k.N)
	if err != nil {
		return nil, errors.New("n is not base64url")
	}
	e, err := decodeBase64URL(k.E)
	if err != nil {
		return nil, errors.New("e is not base64url")
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	if bits := modulus.BitLen(); bits < minRSA || bits > maxRSA {
		return nil, fmt.Errorf("an RSA key must have %d to %d bits, not %d", minRSA, maxRSA, bits)
	}
	if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 {
		return nil, errors.New("e is not the exponent of an RSA key")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}, nil
}

func (k jwk) ec() (*ecdsa.PublicKey, error) {
	x, errX := decodeBase64URL(k.X)
	y, errY := decodeBase64URL(k.Y)
	if errX != nil || errY != nil || len(x) != 32 || len(y) != 32 {
		return nil, errors.New("x and y must be 32 bytes each, in base64url")
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	if err != nil {
		return nil, errors.New("x and y are not a point of P-256")
	}
	return key, nil
}

// keyFor returns the key for the alg and kid of a token. If the token or the key has no
// kid, the key must be the only one.
func keyFor(keys []issuerKey, alg, id string) (crypto.PublicKey, bool) {
	for _, k := range keys {
		named := id != "" && k.id == id
		only := len(keys) == 1 && (id == "" || k.id == "")
		if named || only {
			return k.public, k.alg == alg
		}
	}
	return nil, false
}

// decodeBase64URL decodes base64url without padding, only in its canonical form.
func decodeBase64URL(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") { // the decoder would skip them
		return nil, errors.New("line break in base64url")
	}
	return base64.RawURLEncoding.Strict().DecodeString(text)
}
