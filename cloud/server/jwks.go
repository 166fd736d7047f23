package server

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
	"net/url"
	"strings"
)

// Issuer is an OIDC provider whose ID tokens are exchanged for pool tokens: any
// of them that is meant for an organisation, for any pool of it.
type Issuer struct {
	URL  string // as tokens name it in iss, letter by letter
	Keys []byte // its public keys, as the JWKS document that the provider publishes
}

// issuer is an Issuer that has been read.
type issuer struct {
	url  string
	keys []issuerKey
}

// issuerKey is a key with the one algorithm that it is good for.
type issuerKey struct {
	id     string // kid; may be empty
	alg    string // RS256 or ES256
	public crypto.PublicKey
}

// Signature algorithms (RFC 7518, section 3.1). There are no others here: a
// provider of ID tokens must offer RS256, and those with elliptic curves use
// ES256.
const (
	algRSA = "RS256"
	algEC  = "ES256"
)

// Sizes of RSA keys in bits: less is not safe, and more takes a caller who has
// proved nothing yet too much of the processor.
const (
	minRSA = 2048
	maxRSA = 8192
)

// openIssuers reads what the options say of issuers.
func openIssuers(all []Issuer) ([]issuer, error) {
	var opened []issuer
	for _, one := range all {
		place, err := url.Parse(one.URL)
		if err != nil || place.Host == "" || place.Scheme != "https" && place.Scheme != "http" {
			return nil, fmt.Errorf("OIDC issuer %q: give the URL that its tokens have in iss, such as https://issuer.example", one.URL)
		}
		for _, other := range opened {
			if other.url == one.URL {
				return nil, fmt.Errorf("OIDC issuer %s: it is given twice: put all its keys into one document", one.URL)
			}
		}
		keys, err := readKeys(one.Keys)
		if err != nil {
			return nil, fmt.Errorf("OIDC issuer %s: %w", one.URL, err)
		}
		opened = append(opened, issuer{one.URL, keys})
	}
	return opened, nil
}

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

// readKeys reads a JWKS document. Keys of other kinds and for other purposes
// are left out; none left is an error, and so is a key that is broken.
func readKeys(document []byte) ([]issuerKey, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if json.Unmarshal(document, &set) != nil {
		return nil, errors.New("the keys are not a JWKS document: give what its jwks_uri shows")
	}
	var keys []issuerKey
	for i, k := range set.Keys {
		if k.Private != "" {
			return nil, fmt.Errorf("key %d of the JWKS document is a private one: give the public ones", i)
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
				return nil, fmt.Errorf("key %d of the JWKS document has the kid %q of another one", i, read.id)
			}
		}
		keys = append(keys, read)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("the JWKS document has no key to check signatures with: %s and %s (P-256) are known", algRSA, algEC)
	}
	return keys, nil
}

func (k jwk) rsa() (*rsa.PublicKey, error) {
	n, err := unbase64(k.N)
	if err != nil {
		return nil, errors.New("n is not base64url")
	}
	e, err := unbase64(k.E)
	if err != nil {
		return nil, errors.New("e is not base64url")
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e)
	if bits := modulus.BitLen(); bits < minRSA || bits > maxRSA {
		return nil, fmt.Errorf("an RSA key must have %d to %d bits, and it has %d", minRSA, maxRSA, bits)
	}
	if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 {
		return nil, errors.New("e is not the exponent of an RSA key")
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}, nil
}

func (k jwk) ec() (*ecdsa.PublicKey, error) {
	x, errX := unbase64(k.X)
	y, errY := unbase64(k.Y)
	if errX != nil || errY != nil || len(x) != 32 || len(y) != 32 {
		return nil, errors.New("x and y must be 32 bytes each, in base64url")
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	if err != nil {
		return nil, errors.New("x and y are not a point of P-256")
	}
	return key, nil
}

// key is the key that a token was signed with, by what it says. Without a kid
// on one of the two sides, it is the issuer's only key.
func (i issuer) key(alg, id string) (crypto.PublicKey, bool) {
	for _, k := range i.keys {
		named := id != "" && k.id == id
		only := len(i.keys) == 1 && (id == "" || k.id == "")
		if named || only {
			return k.public, k.alg == alg
		}
	}
	return nil, false
}

// unbase64 reads base64url without padding, and only its one canonical form.
func unbase64(text string) ([]byte, error) {
	if strings.ContainsAny(text, "\r\n") { // which the decoder would skip
		return nil, errors.New("line break in base64url")
	}
	return base64.RawURLEncoding.Strict().DecodeString(text)
}
