package secret

import "strings"

// AccessTokenPrefix begins every access token of the service (Pulumi
// documentation, "Access tokens").
const AccessTokenPrefix = "pul-"

// webTokenPrefix begins every JSON Web Token: the base64 form of `{"` (RFC 7519).
const webTokenPrefix = "eyJ"

// LooksLikeToken reports whether text begins as access tokens and JSON Web Tokens
// do, so that it is no name of a file and must not be printed.
func LooksLikeToken(text string) bool {
	return strings.HasPrefix(text, AccessTokenPrefix) || strings.HasPrefix(text, webTokenPrefix)
}

// ContainsToken reports whether a text that looks like a token stands anywhere in
// text.
func ContainsToken(text string) bool {
	return strings.Contains(text, AccessTokenPrefix) || strings.Contains(text, webTokenPrefix)
}
