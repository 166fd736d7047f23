package runner

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits in bytes of the secrets inside a text. Without them, a text of many names and no separators
// would cost quadratic time.
const (
	maxAssigned = 1 << 10 // of a secret that has a name; a key in PEM may be longer
	maxURL      = 2 << 10 // of a URL; the remaining part is ignored
)

// shaped returns the secrets that the shape of a text shows, regardless of the name of its variable:
//
//  1. tokens with a known prefix, such as ghp_
//  2. private keys in PEM
//  3. passwords of URLs, and parts of URLs that look random
//  4. values whose name inside the text looks secret: password=x in a DSN or the query of a JDBC URL,
//     AccountKey=x in a connection string, sig=x in a SAS, "token": "x" in JSON, token: x in YAML
func shaped(text string) []string {
	found := secret.Tokens(text)                             // 1.
	for _, key := range privateKey.FindAllString(text, -1) { // 2.
		// In JSON and in files of variables, \n is in place of each line break.
		found = append(found, key, strings.ReplaceAll(key, `\n`, "\n"))
	}
	found = append(found, passwords(text)...) // 3.
	found = append(found, assigned(text)...)  // 4.
	return found[:min(len(found), maxContents)]
}

// privateKey matches a private key in PEM (RFC 7468) or of PGP. The end may be missing.
var privateKey = regexp.MustCompile(
	`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*-----|$)`)

// assignment matches a name and the sign between it and its value.
var assignment = regexp.MustCompile(`([A-Za-z][A-Za-z0-9_.-]*)["']?[ \t]*([=:])[ \t]*`)

// assignedEnds are sets of characters at which a value without quotes may end. The end depends on
// the format: a password may have a space in a connection string, but not in a DSN. So each set gives
// one secret, and the longest that a log has is redacted.
var assignedEnds = []string{";\r\n", ";&\r\n", ";& \t\r\n", ";& \t\r\n,", ";& \t\r\n,\"'})"}

// assigned returns the values in a text whose names look secret.
func assigned(text string) []string {
	var found []string
	for _, m := range assignment.FindAllStringSubmatchIndex(text, -1) {
		name, sign, value := text[m[2]:m[3]], text[m[4]:m[5]], text[m[1]:min(len(text), m[1]+maxAssigned+2)]
		switch {
		case len(found) >= maxContents:
			return found
		case value == "" || !assignsSecret(name):
			continue
		}
		quote := strings.IndexByte(`"'`, value[0]) >= 0
		if sign == ":" && !quote && m[1] == m[5] { // host:port, or the scheme of a URL
			continue
		}
		if quote {
			value, _, _ = strings.Cut(value[1:], value[:1])
			found = appendAssigned(found, value)
			continue
		}
		for _, end := range assignedEnds {
			if at := strings.IndexAny(value, end); at >= 0 {
				value = value[:at]
			}
			found = appendAssigned(found, value)
		}
	}
	return found
}

// appendAssigned appends a value, and its form without percent-encoding.
func appendAssigned(found []string, value string) []string {
	if value = strings.TrimSpace(value); len(value) > maxAssigned || slices.Contains(found, value) {
		return found
	}
	found = append(found, value)
	if meant, err := url.PathUnescape(value); err == nil && meant != value {
		found = append(found, meant)
	}
	return found
}

// assignsSecret reports whether a name inside a text is that of a secret. It differs from
// looksSecret for names that are common inside texts: the values of key: x and auth: x are often not
// secret.
func assignsSecret(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(snakeCase(name), "-", "_"))
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '.' })
	last := parts[len(parts)-1]
	switch {
	case slices.Contains(locationParts, last):
		return false
	case last == "key" && len(parts) > 1, slices.Contains([]string{"pwd", "pass", "sig", "pat", "jwt"}, last),
		strings.HasSuffix(name, "client_key_data"): // of a kubeconfig
		return true
	}
	return slices.ContainsFunc(secretSubstrings, func(part string) bool { return strings.Contains(name, part) })
}
