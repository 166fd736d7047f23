package cloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// claims are the claims of an OIDC token that an exchange depends on.
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

// errNoClaims is the error for a text that is not a JSON Web Token. It does not quote the
// text.
var errNoClaims = errors.New("the file of oidc_token_file contains no JSON Web Token")

// claimsOf decodes the claims of a token. It does not verify the signature.
func claimsOf(token secret.String) (claims, error) {
	parts := strings.Split(token.Reveal(), ".")
	if len(parts) != 3 {
		return claims{}, errNoClaims
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var c claims
	if err != nil || json.Unmarshal(text, &c) != nil {
		return claims{}, errNoClaims
	}
	return c, nil
}

// checkTokenFile reads the OIDC token and checks its claims.
func (c *selfChecker) checkTokenFile(context.Context) selfcheck.Result {
	const renew = "check that the process that writes the file is running, and that the agent's user can read the file"
	token, err := readTokenFile(c.options.Tuning.OIDCTokenFile)
	if err != nil {
		return selfcheck.Failed("read oidc_token_file: %v", err).WithHint(renew)
	}
	found, err := claimsOf(token)
	if err != nil {
		return selfcheck.Failed("%v", err).
			WithHint("configure an OIDC provider that writes its ID token to this file; " +
				"in Kubernetes, use a projected service account token")
	}

	now, begin, end := time.Now(), timeOfClaim(found.NotBefore), timeOfClaim(found.Expires)
	switch {
	case found.Expires > 0 && !now.Before(end):
		return selfcheck.Failed("the OIDC token expired at %s", end.Format(time.RFC3339)).WithHint(renew)
	case found.NotBefore > 0 && now.Add(clockWarning).Before(begin):
		return selfcheck.Failed("the OIDC token is not valid before %s", begin.Format(time.RFC3339)).
			WithHint("correct the clock of this machine")
	}
	if want := "urn:pulumi:org:" + c.options.Identity.Organization; !slices.Contains(found.Audience, want) {
		return selfcheck.Warned("the OIDC token has the audience %q, but not %s", found.Audience, want).
			WithHint("request it with that audience, " +
				"or allow this audience in the organization's OIDC issuer settings")
	}
	until := "with no expiry"
	if found.Expires > 0 {
		until = "until " + end.Format(time.RFC3339)
	}
	return selfcheck.Passed("the OIDC token is valid %s, for issuer %s and subject %s; "+
		"its signature is not verified here", until, found.Issuer, found.Subject)
}

// maxUnixSeconds limits times in claims, in seconds since 1970: the end of the year 9999.
const maxUnixSeconds = 253402300799

// timeOfClaim returns the time of a claim in seconds since 1970.
func timeOfClaim(seconds float64) time.Time {
	return time.Unix(int64(max(0, min(seconds, maxUnixSeconds))), 0).UTC()
}

// checkExchange exchanges the OIDC token as the agent does, if wanted, and checks the
// new token.
func (c *selfChecker) checkExchange(ctx context.Context, wanted bool) selfcheck.Result {
	if !wanted {
		return selfcheck.Skipped("the OIDC token was not exchanged, " +
			"because the service would issue a token that stays valid").
			WithHint("to exchange it, run cmwa doctor --exchange")
	}
	caller := newCaller(callerOptions{
		service: c.options.Identity.Service, userAgent: c.options.UserAgent,
		transport: c.transport, log: c.options.Log,
	})
	token, _, err := exchange(ctx, c.options.Identity, &c.options.Tuning, caller)
	if err != nil {
		message := err.Error()
		if subject, err := readTokenFile(c.options.Tuning.OIDCTokenFile); err == nil {
			message = strings.ReplaceAll(message, subject.Reveal(), secret.Mark)
		}
		return selfcheck.Failed("%s", message)
	}
	return c.judgeToken(ctx, token.Reveal(), "check organization_name and runner_pool_id")
}
