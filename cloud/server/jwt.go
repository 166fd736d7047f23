package server

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// maxIDToken limits an ID token in bytes, as the agent limits its file.
const maxIDToken = 64 << 10

// clockLeeway is how far an issuer's clock may be ahead of ours.
const clockLeeway = time.Minute

// lastDate is the end of the year 9999, in Unix seconds.
const lastDate = 253402300799

// idToken is an ID token as it claims to be. Times that it does not have are
// zero.
type idToken struct {
	alg, key  string
	signed    string // what the signature is of
	signature []byte

	issuer    string
	audience  []string
	expires   time.Time
	notBefore time.Time
	issued    time.Time
}

// readIDToken takes a JWT in its compact form apart (RFC 7515, RFC 7519), and
// believes none of it. Its errors are the same for all tokens.
func readIDToken(token secret.String) (idToken, error) {
	text := token.Reveal()
	if len(text) > maxIDToken {
		return idToken{}, badToken("the subject token is too large")
	}
	parts := strings.SplitN(text, ".", 4)
	if len(parts) != 3 {
		return idToken{}, badToken("the subject token is not a signed JWT")
	}
	header, errHeader := readPart(parts[0])
	claims, errClaims := readPart(parts[1])
	signature, errSignature := unbase64(parts[2])
	if errHeader != nil || errClaims != nil || errSignature != nil {
		return idToken{}, badToken("the subject token is not a signed JWT")
	}
	t := idToken{signed: parts[0] + "." + parts[1], signature: signature}
	if _, critical := header["crit"]; critical { // must be understood, and none is
		return idToken{}, badToken("the subject token has critical extensions, which are not known here")
	}
	if !header.read("alg", &t.alg) || !header.read("kid", &t.key) {
		return idToken{}, badToken("the subject token's header is not of the documented form")
	}
	var audience string
	okay := claims.read("iss", &t.issuer)
	if claims.read("aud", &audience) {
		t.audience = []string{audience}
	} else {
		okay = claims.read("aud", &t.audience) && okay
	}
	for name, into := range map[string]*time.Time{"exp": &t.expires, "nbf": &t.notBefore, "iat": &t.issued} {
		okay = claims.date(name, into) && okay
	}
	if !okay {
		return idToken{}, badToken("the subject token's claims are not of the documented form")
	}
	return t, nil
}

// check tells whether to believe a token, and whether it is for an audience,
// now. The signature is the first thing that is looked at, so that the answer
// tells nothing to those who made a token up.
func (t idToken) check(issuers []issuer, audience string, now time.Time) error {
	at := slices.IndexFunc(issuers, func(i issuer) bool { return i.url == t.issuer })
	if at < 0 {
		return badToken("the subject token's issuer (iss) is not one of this service: start it with --oidc-issuer for it")
	}
	if t.alg != algRSA && t.alg != algEC {
		return badToken("the subject token must be signed with " + algRSA + " or " + algEC)
	}
	key, found := issuers[at].key(t.alg, t.key)
	if !found {
		return badToken("the subject token's key (kid, alg) is not one of its issuer: if the issuer has changed its keys, give their new JWKS document with --oidc-issuer")
	}
	if !signedBy(key, t.signed, t.signature) {
		return badToken("the subject token's signature is wrong")
	}
	switch {
	case !slices.Contains(t.audience, audience):
		return badToken("the subject token is not for the audience of the request: let the issuer put that into aud")
	case t.expires.IsZero():
		return badToken("the subject token has no end (exp)")
	case !now.Before(t.expires):
		return badToken("the subject token has expired (exp): get a new one")
	case t.notBefore.After(now.Add(clockLeeway)), t.issued.After(now.Add(clockLeeway)):
		return badToken("the subject token is from the future (nbf, iat): compare the clocks")
	}
	return nil
}

// signedBy checks a signature over SHA-256. That of ECDSA is r and s, 32 bytes
// each (RFC 7518, section 3.4).
func signedBy(key crypto.PublicKey, text string, signature []byte) bool {
	sum := sha256.Sum256([]byte(text))
	switch key := key.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
	case *ecdsa.PublicKey:
		if len(signature) != 64 {
			return false
		}
		r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
		return ecdsa.Verify(key, sum[:], r, s)
	}
	return false
}

func badToken(text string) error { return deny("invalid_grant", "%s", text) }

// members is a JSON object whose names are exact and stand once each, which
// decoding into a struct does not see to: two readers of one token must not
// read two different things.
type members map[string]json.RawMessage

func readPart(text string) (members, error) {
	raw, err := unbase64(text)
	if err != nil {
		return nil, err
	}
	return readMembers(raw)
}

func readMembers(text []byte) (members, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	all := members{}
	for decoder.More() {
		token, err := decoder.Token()
		name, isName := token.(string)
		if err != nil || !isName {
			return nil, errors.New("not a JSON object")
		}
		if _, twice := all[name]; twice {
			return nil, errors.New("a name stands twice in an object")
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil, errors.New("not a JSON object")
		}
		all[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errors.New("not a JSON object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return all, nil
}

// read reads a member that may be missing, and tells whether it is of the kind
// that is wanted.
func (m members) read(name string, into any) bool {
	value, found := m[name]
	return !found || json.Unmarshal(value, into) == nil
}

// date reads a number of seconds since 1970, which may have a fraction.
func (m members) date(name string, into *time.Time) bool {
	var seconds *float64
	if !m.read(name, &seconds) {
		return false
	}
	if seconds == nil {
		return true
	}
	if *seconds < 0 || *seconds > lastDate {
		return false
	}
	whole := int64(*seconds)
	*into = time.Unix(whole, int64((*seconds-float64(whole))*1e9))
	return true
}
