package cloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// claims are the claims of an OIDC token that matter for an exchange.
type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expires   float64  `json:"exp"` // seconds since 1970
	NotBefore float64  `json:"nbf"`
}

// audience is one name, or a list of them (RFC 7519, 4.1.3).
type audience []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *audience) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// errNoClaims is the error for a text that is no JSON Web Token. It quotes nothing.
var errNoClaims = errors.New("the file of oidc_token_file holds no JSON Web Token")

// claimsOf reads the claims of a token, whose signature is not verified.
func claimsOf(token secret.String) (claims, error) {
	parts := strings.Split(token.Reveal(), ".")
	if len(parts) != 3 {
		return claims{}, errNoClaims
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return claims{}, errNoClaims
	}
	var c claims
	if json.Unmarshal(text, &c) != nil {
		return claims{}, errNoClaims
	}
	return c, nil
}

// checkTokenFile reads the OIDC token and judges its claims.
func (c *selfChecker) checkTokenFile(context.Context) runtime.CheckResult {
	// Read it.
	const renew = "see that what writes the file runs, and that the agent's user may read it"
	token, err := readTokenFile(c.options.Tuning.OIDCTokenFile)
	if err != nil {
		return runtime.CheckFailed("read oidc_token_file: %v", err).WithCure(renew)
	}
	found, err := claimsOf(token)
	if err != nil {
		return runtime.CheckFailed("%v", err).
			WithCure("let an OIDC provider write its ID token there; " +
				"in Kubernetes, that is a projected service account token")
	}

	// Judge when it is valid, and for whom.
	now, begin, end := time.Now(), instant(found.NotBefore), instant(found.Expires)
	switch {
	case found.Expires > 0 && !now.Before(end):
		return runtime.CheckFailed("the OIDC token expired at %s", end.Format(time.RFC3339)).WithCure(renew)
	case found.NotBefore > 0 && now.Add(clockWarning).Before(begin):
		return runtime.CheckFailed("the OIDC token is not valid before %s", begin.Format(time.RFC3339)).
			WithCure("correct the clock of this machine")
	}
	if want := "urn:pulumi:org:" + c.options.Identity.Organization; !slices.Contains(found.Audience, want) {
		return runtime.CheckWarned("the OIDC token is for the audience %q, and not for %s", found.Audience, want).
			WithCure("request it with that audience, " +
				"or see that the organisation's trust in the issuer allows the other")
	}
	until := "without an end"
	if found.Expires > 0 {
		until = "until " + end.Format(time.RFC3339)
	}
	return runtime.CheckPassed("the OIDC token is valid %s, for issuer %s and subject %s; "+
		"its signature is not verified here", until, found.Issuer, found.Subject)
}

// latest is the last instant that is believed, in seconds since 1970: in the year 9999.
const latest = 253402300799

// instant returns a claim that is a time.
func instant(seconds float64) time.Time {
	return time.Unix(int64(max(0, min(seconds, latest))), 0).UTC()
}

// checkExchange exchanges the OIDC token as the agent does, if that is wanted, and
// then checks the token that it got.
func (c *selfChecker) checkExchange(ctx context.Context, wanted bool) runtime.CheckResult {
	if !wanted {
		return runtime.CheckSkipped("the OIDC token was not exchanged, " +
			"because the service would issue a token that stays valid").
			WithCure("cmwa doctor --exchange makes one exchange")
	}
	by := newCaller(callerOptions{
		service: c.options.Identity.Service, userAgent: c.options.UserAgent,
		transport: c.transport, log: c.options.Log,
	})
	token, _, err := exchange(ctx, c.options.Identity, c.options.Tuning, by)
	if err != nil {
		message := err.Error()
		if subject, err := readTokenFile(c.options.Tuning.OIDCTokenFile); err == nil {
			message = strings.ReplaceAll(message, subject.Reveal(), secret.Mark)
		}
		return runtime.CheckFailed("%s", message)
	}
	return c.judgeToken(ctx, token.Reveal(), "check organization_name and runner_pool_id")
}
