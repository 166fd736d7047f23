package idtoken

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Issuer is an OIDC provider whose ID tokens are accepted under conditions.
type Issuer struct {
	URL    string  // exactly the iss of its tokens
	Keys   []byte  // its public keys, as the JWKS document that the provider publishes
	Claims []Claim // that its tokens must have, all of them
	Pool   string  // name or ID of the only pool that the tokens are valid for; empty means every pool
	Access string  // the access token that they are exchanged for, and no pool token: member, admin or user:NAME
}

// ParseIssuer reads an issuer and the name of the file with the issuer's keys. It does not
// read the file. The documentation of the package describes the form of the text.
func ParseIssuer(text string) (issuer Issuer, file string, err error) {
	reader := csv.NewReader(strings.NewReader(text))
	reader.TrimLeadingSpace = true
	parts, err := reader.Read()
	if err != nil || reader.InputOffset() != int64(len(text)) {
		return Issuer{}, "", errors.New("must be URL=JWKS_FILE,CLAIM=PATTERN,… on one line; " +
			"a part that contains a comma is written in double quotes")
	}

	// A name or a pattern with a line break or another control character is a mistake of quoting. In
	// quotes, the reader also changes CR LF to LF.
	if slices.ContainsFunc(parts, func(part string) bool { return strings.ContainsFunc(part, unicode.IsControl) }) {
		return Issuer{}, "", errors.New("must not contain control characters, such as line breaks")
	}

	// Read the URL. The URL of an issuer has no query (OpenID Connect Discovery), and so no
	// equals sign.
	var found bool
	issuer.URL, file, found = strings.Cut(parts[0], "=")
	if !found || issuer.URL == "" || file == "" {
		return Issuer{}, "", errors.New("must begin with URL=JWKS_FILE: the iss of its tokens, " +
			"and a file with the document at its jwks_uri")
	}

	for _, part := range parts[1:] {
		name, pattern, found := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		switch {
		case !found || name == "" || pattern == "":
			return Issuer{}, "", fmt.Errorf("%q is not CLAIM=PATTERN; "+
				"if the comma before it belongs to a file or a pattern, write that part in double quotes", part)
		case name == "pool" && issuer.Pool != "":
			return Issuer{}, "", errors.New("pool is given twice: give the issuer once for each pool")
		case name == "pool":
			issuer.Pool = pattern
		case name == "token" && issuer.Access != "":
			return Issuer{}, "", errors.New("token is given twice: give the issuer once for each kind of token")
		case name == "token" && pattern != "member" && pattern != "admin" && !strings.HasPrefix(pattern, "user:"):
			return Issuer{}, "", errors.New("token must be member, admin, or user: followed by the name of a user")
		case name == "token":
			issuer.Access = pattern
		default:
			issuer.Claims = append(issuer.Claims, Claim{name, pattern})
		}
	}
	if issuer.Access != "" && issuer.Pool != "" {
		return Issuer{}, "", errors.New("pool and token exclude each other: give the issuer once for each of them")
	}
	return issuer, file, nil
}

// Issuers are the issuers whose tokens are accepted.
type Issuers []trusted

// trusted is an Issuer with its decoded keys.
type trusted struct {
	Issuer
	keys []issuerKey
}

// Open decodes and checks issuers.
func Open(all []Issuer) (Issuers, error) {
	var opened Issuers
	for _, option := range all {
		parsed, err := url.Parse(option.URL)
		if err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" {
			return nil, fmt.Errorf("OIDC issuer %q: use the iss of its tokens, such as https://issuer.example",
				option.URL)
		}
		for _, other := range opened {
			if other.URL == option.URL && (other.unconditional() || option.unconditional()) {
				return nil, fmt.Errorf("OIDC issuer %s is given more than once, and at least once without a claim or "+
					"a pool: add one to every --oidc-issuer for it; or give it once, with all its keys in one document",
					option.URL)
			}
		}
		if option.Access != "" && len(option.Claims) == 0 {
			return nil, fmt.Errorf("OIDC issuer %s: token=%s needs a CLAIM=PATTERN, such as sub=PATTERN, so that not "+
				"every token of the issuer gets it", option.URL, option.Access)
		}
		if err := checkPublic(option, parsed); err != nil {
			return nil, err
		}
		keys, err := readKeys(option.Keys)
		if err != nil {
			return nil, fmt.Errorf("OIDC issuer %s: %w", option.URL, err)
		}
		opened = append(opened, trusted{option, keys})
	}
	return opened, nil
}

// unconditional reports whether every token of the issuer is accepted for every pool. With Access there are claims.
func (i Issuer) unconditional() bool { return len(i.Claims) == 0 && i.Pool == "" }

// Grant contains what a verified token may be exchanged for: the tokens of pools, and access tokens.
type Grant struct{ pools, access []string }

// Allows reports whether the token is valid for a pool.
func (g Grant) Allows(id, name string) bool {
	return slices.ContainsFunc(g.pools, func(p string) bool { return p == "" || p == id || p == name })
}

// AllowsAccess reports whether the token may be exchanged for an access token: see [Issuer.Access]. One for admin
// is also one for member.
func (g Grant) AllowsAccess(access string) bool {
	return slices.Contains(g.access, access) || access == "member" && slices.Contains(g.access, "admin")
}

// Check verifies that a token is valid at the time now for an audience. It finds the keys by
// the claim iss, and verifies the signature before all other claims, so that the sender of a
// forged token learns nothing about the required claims. Its errors are of type *[Error].
func (all Issuers) Check(t Token, audience string, now time.Time) (Grant, error) {
	var issuers Issuers
	for _, i := range all {
		if i.URL == t.issuer {
			issuers = append(issuers, i)
		}
	}
	if len(issuers) == 0 {
		return Grant{}, refuse("the subject token's issuer (iss) is unknown: " +
			"start the service with --oidc-issuer for it")
	}
	if t.alg != algRSA && t.alg != algEC {
		return Grant{}, refuse("the subject token must be signed with " + algRSA + " or " + algEC)
	}
	signed, known := Issuers{}, false
	for _, i := range issuers {
		key, found := keyFor(i.keys, t.alg, t.kid)
		known = known || found
		if found && signedBy(key, t.signed, t.signature) {
			signed = append(signed, i)
		}
	}
	switch {
	case !known:
		return Grant{}, refuse("the subject token's key (kid, alg) does not belong to its issuer: " +
			"if the issuer has changed its keys, pass the new JWKS document with --oidc-issuer")
	case len(signed) == 0:
		return Grant{}, refuse("the subject token's signature is wrong")
	}

	if err := t.checkAudienceAndTimes(audience, now); err != nil {
		return Grant{}, err
	}
	var grant Grant
	var mismatch error
	for _, i := range signed {
		if err := t.claims.check(i.Claims); err != nil {
			mismatch = err
			continue
		}
		if i.Access != "" {
			grant.access = append(grant.access, i.Access)
		} else {
			grant.pools = append(grant.pools, i.Pool)
		}
	}
	if len(grant.pools)+len(grant.access) == 0 {
		return Grant{}, mismatch
	}
	return grant, nil
}
