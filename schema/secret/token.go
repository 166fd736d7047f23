package secret

import "strings"

// AccessTokenPrefix is the prefix of access tokens of the service (Pulumi documentation,
// "Access tokens").
const AccessTokenPrefix = "pul-"

// webTokenPrefix is the prefix of JSON Web Tokens: `{"` in base64 (RFC 7519).
const webTokenPrefix = "eyJ"

// LooksLikeToken reports whether text has the prefix of an access token or a JSON Web
// Token. Such a text is not the name of a file and must not be printed.
func LooksLikeToken(text string) bool {
	return strings.HasPrefix(text, AccessTokenPrefix) || strings.HasPrefix(text, webTokenPrefix)
}

// ContainsToken reports whether text contains the prefix of a token at any position.
func ContainsToken(text string) bool {
	return strings.Contains(text, AccessTokenPrefix) || strings.Contains(text, webTokenPrefix)
}
