package runner

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Minimal lengths. Shorter texts are not redacted: they occur in a log by chance too often.
const (
	minSecret  = 6 // characters of a secret
	minLine    = 8 // characters of one line of a secret with several lines
	minEncoded = 8 // bytes of an encoded form of a secret
)

// secretSubstrings are substrings of the names of variables that contain a secret.
var secretSubstrings = []string{
	"token", "secret", "passw", "passphrase", "credential", "apikey", "api_key", "accesskey", "access_key",
	"privatekey", "private_key", "signature", "bearer",
}

// secretParts are parts of the names of variables that contain a secret. Each is a complete
// part between two separators.
var secretParts = []string{"key", "pass", "pwd", "pat", "auth", "jwt"}

// locationParts are the last parts of names of variables that contain the location of a
// secret and not the secret.
var locationParts = []string{"file", "path", "dir", "url", "uri", "name", "type"}

// looksSecret reports whether the value of a variable with this name must be redacted.
// The definitions of Pulumi do not mark secret variables, so only the names can be used.
func looksSecret(name string) bool {
	name = strings.ToLower(name)
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	switch {
	case len(parts) == 0, name == "pwd", name == "oldpwd", slices.Contains(locationParts, parts[len(parts)-1]):
		return false
	case slices.ContainsFunc(parts, func(part string) bool { return slices.Contains(secretParts, part) }):
		return true
	}
	return slices.ContainsFunc(secretSubstrings, func(part string) bool { return strings.Contains(name, part) })
}

// secretsOf returns the texts to redact: the tokens of the job, the texts that the handoff
// lists, secret variables of the definition, all forwarded variables, variables of the
// environment whose names look secret, the secrets inside all of these, and the secrets of known
// shapes in any variable.
func secretsOf(h *runtime.Handoff, definition *cloud.Definition, env environ) []string {
	all := append([]string{h.Token, h.OIDC}, h.Redact...)
	for name, value := range definition.Env {
		if value.Secret || slices.Contains(definition.SecretVariables, name) {
			all = append(all, value.Value.Reveal())
		}
	}
	for _, value := range h.Forward {
		all = append(all, value)
	}
	for name, value := range env {
		if looksSecret(name) {
			all = append(all, value)
		}
	}
	for _, value := range slices.Clone(all) {
		all = append(all, contents(value)...)
	}
	for _, value := range env {
		all = append(all, shaped(value)...)
	}
	return all
}

// patterns returns the texts to find: each secret, its lines, and its common encodings.
// Forms in base64 may be wrapped: the program base64 breaks lines at 76 columns, and openssl
// at 64. If the secret is a part of a larger file, the break can be at any of its positions. Forms in
// base32 and hexadecimal may not: a line that ends with the first character of a wrapped form is held
// back until the next line is known, and hexadecimal forms start with common characters.
func patterns(secrets []string) (plain, wrapped []string) {
	for _, value := range secrets {
		bare := strings.TrimSpace(value)
		if utf8.RuneCountInString(bare) < minSecret {
			continue
		}

		plain = append(plain, bare) // without its last newline, which would join two lines
		if strings.Contains(bare, "\n") {
			for line := range strings.Lines(bare) {
				if line = strings.TrimSpace(line); utf8.RuneCountInString(line) >= minLine {
					plain = append(plain, line)
				}
			}
		}

		plain = appendForms(plain, percentForms(bare)...)
		inHex := hex.EncodeToString([]byte(bare))
		plain = appendForms(plain, inHex, strings.ToUpper(inHex))
		for _, text := range []string{value, bare} {
			for _, form := range []string{jsonForm(text, true), jsonForm(text, false)} {
				plain = appendForms(plain, form, strings.ReplaceAll(form, "/", `\/`)) // as in PHP
			}
			wrapped = appendForms(wrapped, groupForms(text, 3, 6, base64.StdEncoding.EncodeToString)...)
			wrapped = appendForms(wrapped, groupForms(text, 3, 6, base64.URLEncoding.EncodeToString)...)
			plain = appendForms(plain, groupForms(text, 5, 5, base32.StdEncoding.EncodeToString)...)
		}
	}
	slices.Sort(plain)
	slices.Sort(wrapped)
	return slices.Compact(plain), slices.Compact(wrapped)
}

func appendForms(all []string, forms ...string) []string {
	for _, form := range forms {
		if len(form) >= minEncoded {
			all = append(all, form)
		}
	}
	return all
}

// percentForms returns the forms of a text in a URL. Which characters are escaped differs between
// the query of a form, a path, and encodeURIComponent of JavaScript. The digits of an escape may be
// in lower case.
func percentForms(text string) []string {
	query := url.QueryEscape(text)
	component := strings.ReplaceAll(query, "+", "%20")
	var forms []string
	for _, form := range []string{query, component, unescaped.Replace(component), url.PathEscape(text)} {
		forms = append(forms, form, escape.ReplaceAllStringFunc(form, strings.ToLower))
	}
	return forms
}

var (
	escape    = regexp.MustCompile("%[0-9A-F]{2}")
	unescaped = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*") // by encodeURIComponent
)

// groupForms returns the forms of a text in an encoding that turns each group of bytes into letters
// of a number of bits: 3 and 6 for base64, 5 and 5 for base32. The forms differ for each offset in a
// group at which the text can start. The first one, with padding and without, is that of the text
// alone.
func groupForms(text string, group, bits int, encode func([]byte) string) []string {
	alone := encode([]byte(text))
	forms := []string{alone, strings.TrimRight(alone, "=")}
	for before := range group {
		padded := append(make([]byte, before), text...)
		whole := len(padded) / group * group // the remaining bytes share a letter with the next byte
		lead := (before*8 + bits - 1) / bits // letters that depend on the bytes before the text
		if form := encode(padded[:whole]); len(form) > lead {
			forms = append(forms, form[lead:])
		}
	}
	return forms
}

// jsonForm returns a text as it is written between the quotes of a JSON string.
func jsonForm(text string, escapeHTML bool) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(escapeHTML)
	if encoder.Encode(text) != nil {
		return ""
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	return quoted[1 : len(quoted)-1]
}
