package idtoken

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

// MaxToken limits an ID token in bytes. The agent has the same limit for its
// oidc_token_file.
const MaxToken = 64 << 10

// clockLeeway is how far the nbf and the iat of a token may be in the future. An exp has no
// leeway.
const clockLeeway = time.Minute

// lastDate is the end of the year 9999, in Unix seconds.
const lastDate = 253402300799

// Token is a decoded ID token whose signature is not verified yet. Missing times are zero.
type Token struct {
	alg, kid  string
	signed    string // signed part
	signature []byte

	claims    Members
	issuer    string
	audience  []string
	expires   time.Time
	notBefore time.Time
	issued    time.Time
}

// Read decodes a JWT in compact form (RFC 7515, RFC 7519) and verifies nothing.
// Its errors contain no part of the token.
func Read(token secret.String) (Token, error) {
	text := token.Reveal()
	if len(text) > MaxToken {
		return Token{}, refuse("the subject token is too large")
	}

	// Decode the three parts, and read the header.
	parts := strings.SplitN(text, ".", 4)
	if len(parts) != 3 {
		return Token{}, refuse("the subject token is not a signed JWT")
	}
	header, errHeader := readPart(parts[0])
	claims, errClaims := readPart(parts[1])
	signature, errSignature := decodeBase64URL(parts[2])
	if errHeader != nil || errClaims != nil || errSignature != nil {
		return Token{}, refuse("the subject token is not a signed JWT")
	}
	t := Token{signed: parts[0] + "." + parts[1], signature: signature, claims: claims}
	if _, critical := header["crit"]; critical { // no extension is supported
		return Token{}, refuse("the subject token has critical extensions, which are not supported")
	}
	if !header.Read("alg", &t.alg) || !header.Read("kid", &t.kid) {
		return Token{}, refuse("the subject token's header does not have the documented form")
	}

	var audience string
	valid := claims.Read("iss", &t.issuer)
	if claims.Read("aud", &audience) {
		t.audience = []string{audience}
	} else {
		valid = claims.Read("aud", &t.audience) && valid
	}
	for name, target := range map[string]*time.Time{"exp": &t.expires, "nbf": &t.notBefore, "iat": &t.issued} {
		valid = claims.date(name, target) && valid
	}
	if !valid {
		return Token{}, refuse("the subject token's claims do not have the documented form")
	}
	return t, nil
}

// Issuer returns the issuer that the token names (iss). The claim may be forged.
func (t Token) Issuer() string { return t.issuer }

// checkAudienceAndTimes checks the audience and the times of a token.
func (t Token) checkAudienceAndTimes(audience string, now time.Time) error {
	switch {
	case !slices.Contains(t.audience, audience):
		return refuse("the aud of the subject token does not contain the audience of this request: " +
			"get a token with that aud from its issuer")
	case t.expires.IsZero():
		return refuse("the subject token has no expiry (exp)")
	case !now.Before(t.expires):
		return refuse("the subject token has expired (exp): get a new one")
	case t.notBefore.After(now.Add(clockLeeway)), t.issued.After(now.Add(clockLeeway)):
		return refuse("the subject token is not valid yet (nbf, iat): compare the clocks")
	}
	return nil
}

// signedBy reports whether a signature of the SHA-256 digest of text is valid. An ECDSA
// signature is r and s, 32 bytes each (RFC 7518, section 3.4).
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

// Error is the reason why a token is refused. Text is for the sender of the token.
type Error struct {
	Text   string
	Detail string // for the log of the service: claims of an authentic token; may be empty
}

// Error returns the text for the sender.
func (e *Error) Error() string { return e.Text }

func refuse(text string) error { return &Error{Text: text} }

// Members is a JSON object whose names are case-sensitive and unique. Decoding into a struct
// does not ensure this. If a name occurred twice, two readers of one token could read
// different values.
type Members map[string]json.RawMessage

func readPart(text string) (Members, error) {
	raw, err := decodeBase64URL(text)
	if err != nil {
		return nil, err
	}
	return ReadMembers(raw)
}

// ReadMembers decodes a JSON object. Anything after the object is an error.
func ReadMembers(text []byte) (Members, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	all := Members{}
	for decoder.More() {
		token, err := decoder.Token()
		name, isName := token.(string)
		if err != nil || !isName {
			return nil, errors.New("not a JSON object")
		}
		if _, duplicate := all[name]; duplicate {
			return nil, errors.New("an object has a duplicate name")
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil, errors.New("not a JSON object")
		}
		all[name] = value
	}

	// Require the end of the object and of the text.
	if _, err := decoder.Token(); err != nil {
		return nil, errors.New("not a JSON object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return all, nil
}

// Read decodes a member, and reports whether that succeeded. A missing member is valid, and
// leaves the target unchanged.
func (m Members) Read(name string, target any) bool {
	value, found := m[name]
	return !found || json.Unmarshal(value, target) == nil
}

// date decodes a number of seconds since 1970, which may have a fraction. It reports whether
// the member is missing, null or a valid time.
func (m Members) date(name string, target *time.Time) bool {
	var seconds *float64
	if !m.Read(name, &seconds) {
		return false
	}
	if seconds == nil {
		return true
	}
	if *seconds < 0 || *seconds > lastDate {
		return false
	}
	whole := int64(*seconds)
	*target = time.Unix(whole, int64((*seconds-float64(whole))*1e9))
	return true
}
