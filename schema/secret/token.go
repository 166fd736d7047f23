package secret

import "strings"

// AccessTokenPrefix is the prefix of access tokens of the service (Pulumi documentation,
// "Access tokens").
const AccessTokenPrefix = "pul-"

// webTokenPrefix is the prefix of JSON Web Tokens: `{"` in base64 (RFC 7519).
const webTokenPrefix = "eyJ"

// tokenShapes are the prefixes of tokens, and how many characters follow at least. The sources are
// the documents of the issuers, and the rules of programs that search for secrets.
var tokenShapes = []struct {
	prefix string
	least  int
}{
	{AccessTokenPrefix, 20},
	{webTokenPrefix, 30},
	{"AKIA", 16}, {"ASIA", 16}, // AWS
	{"AIza", 30}, {"ya29.", 30}, {"GOCSPX-", 20}, // Google
	{"ghp_", 30}, {"gho_", 30}, {"ghu_", 30}, {"ghs_", 30}, {"ghr_", 30}, {"github_pat_", 30},
	{"glpat-", 20}, {"gldt-", 20}, {"glrt-", 20}, {"glcbt-", 20}, {"glptt-", 20}, // GitLab
	{"xoxa-", 20}, {"xoxb-", 20}, {"xoxe.", 20}, {"xoxp-", 20}, {"xoxr-", 20}, {"xoxs-", 20}, {"xapp-", 20}, // Slack
	{"hvs.", 20}, {"hvb.", 20}, {"hvr.", 20}, // Vault
	{"dckr_pat_", 20}, {"npm_", 30}, {"pypi-", 50}, {"rubygems_", 40},
	{"dop_v1_", 40}, {"dp.st.", 30}, {"glsa_", 30}, {"hf_", 30}, {"shpat_", 30},
	{"sk_live_", 20}, {"rk_live_", 20}, {"sk_test_", 20}, {"SG.", 40}, {"sk-ant-", 30}, {"sk-proj-", 30},
}

// LooksLikeToken reports whether text has the prefix of an access token or a JSON Web
// Token. Such a text is not the name of a file and must not be printed.
func LooksLikeToken(text string) bool {
	return strings.HasPrefix(text, AccessTokenPrefix) || strings.HasPrefix(text, webTokenPrefix)
}

// ContainsToken reports whether text contains the prefix of an access token or a JSON Web Token at
// any position, or a token that [Tokens] finds. The prefix is enough because part of a token may be
// missing: an edited line, a cut text.
func ContainsToken(text string) bool {
	return strings.Contains(text, AccessTokenPrefix) || strings.Contains(text, webTokenPrefix) || len(Tokens(text)) > 0
}

// Tokens returns the tokens in text that have a known prefix, such as ghp_, and the length of such a
// token. A token starts after a character that is neither a letter nor a digit, and consists of
// letters, digits and the characters _ - and a full stop that is not its last character.
func Tokens(text string) []string {
	var found []string
	for _, shape := range tokenShapes {
		for from := 0; ; {
			at := strings.Index(text[from:], shape.prefix)
			if at < 0 {
				break
			}
			start := from + at
			from = start + len(shape.prefix)
			if start > 0 && isTokenByte(text[start-1]) && strings.IndexByte("_-.", text[start-1]) < 0 {
				continue
			}
			end := from
			for end < len(text) && isTokenByte(text[end]) {
				end++
			}
			token := strings.TrimRight(text[start:end], ".")
			if from = end; len(token) >= len(shape.prefix)+shape.least {
				found = append(found, token)
			}
		}
	}
	return found
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}
