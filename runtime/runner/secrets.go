package runner

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
)

// Shorter texts are never marked: they stand in a log by chance too often.
const (
	leastSecret  = 6 // characters of a secret
	leastLine    = 8 // characters of one line of a secret that has several
	leastEncoded = 8 // bytes of a secret in another form
)

// tellingParts are what stands in the names of variables that hold a secret.
var tellingParts = []string{
	"token", "secret", "passw", "passphrase", "credential", "apikey", "api_key", "accesskey", "access_key",
	"privatekey", "private_key", "signature", "bearer",
}

// tellingWords are such parts when they stand alone, between underlines.
var tellingWords = []string{"key", "pass", "pwd", "pat", "auth", "jwt"}

// placeWords are last words of names that tell where a secret is, and not the
// secret.
var placeWords = []string{"file", "path", "dir", "url", "uri", "name", "type"}

// looksSecret reports whether a variable of this name should not be shown.
// Pulumi's definitions do not say which of their variables are secret, so the
// names have to.
func looksSecret(name string) bool {
	name = strings.ToLower(name)
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == '.' })
	switch {
	case len(words) == 0, name == "pwd", name == "oldpwd", slices.Contains(placeWords, words[len(words)-1]):
		return false
	case slices.ContainsFunc(words, func(word string) bool { return slices.Contains(tellingWords, word) }):
		return true
	}
	return slices.ContainsFunc(tellingParts, func(part string) bool { return strings.Contains(name, part) })
}

// secretsOf collects what must not be shown: the job's tokens, what the agent
// says, secret variables of the definition, everything forwarded, variables of
// the environment whose names tell, the secrets inside all of these, and the
// passwords of URLs in any variable.
func secretsOf(h *runtime.Handover, definition *cloud.Definition, env environ) []string {
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
		all = append(all, passwords(value)...)
	}
	return all
}

// patterns are the texts to look for: each secret, its lines, and the forms that
// programs commonly give it. Those in base64 may be wrapped: base64 itself breaks
// lines at 76 columns, openssl at 64, and a secret in a larger file at any place.
func patterns(secrets []string) (plain, wrapped []string) {
	for _, value := range secrets {
		bare := strings.TrimSpace(value)
		if utf8.RuneCountInString(bare) < leastSecret {
			continue
		}
		plain = append(plain, bare) // without the newline behind it, which would join two lines
		if strings.Contains(bare, "\n") {
			for line := range strings.Lines(bare) {
				if line = strings.TrimSpace(line); utf8.RuneCountInString(line) >= leastLine {
					plain = append(plain, line)
				}
			}
		}
		plain = appendForms(plain, url.QueryEscape(bare), url.PathEscape(bare))
		for _, text := range []string{value, bare} {
			plain = appendForms(plain, inJSON(text, true), inJSON(text, false))
			wrapped = appendForms(wrapped, inBase64(text)...)
		}
	}
	slices.Sort(plain)
	slices.Sort(wrapped)
	return slices.Compact(plain), slices.Compact(wrapped)
}

// appendForms appends the forms that are long enough.
func appendForms(all []string, forms ...string) []string {
	for _, form := range forms {
		if len(form) >= leastEncoded {
			all = append(all, form)
		}
	}
	return all
}

// inBase64 are the forms of a text in base64, where it looks different at each of
// the three places at which it can start.
func inBase64(text string) []string {
	forms := []string{
		base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte(text)),
		base64.RawStdEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text)),
	}
	for before := range 3 {
		padded := append(make([]byte, before), text...)
		whole := len(padded) / 3 * 3 // what follows shares a letter with the next byte
		lead := (before*8 + 5) / 6   // letters that the bytes in front have a part in
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			if form := encoding.EncodeToString(padded[:whole]); len(form) > lead {
				forms = append(forms, form[lead:])
			}
		}
	}
	return forms
}

// inJSON is a text as it stands between the quotes of a JSON string.
func inJSON(text string, escapeHTML bool) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(escapeHTML)
	if encoder.Encode(text) != nil {
		return ""
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	return quoted[1 : len(quoted)-1]
}
