package runner

import (
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of the secrets that are extracted from one value.
const (
	maxContents = 200 // number of secrets
	maxNesting  = 4   // depth of JSON texts inside JSON texts
	minRandom   = 24  // shortest random text, in characters
)

// contents returns the secrets inside a secret value that is JSON or has secrets of known shapes,
// because programs decode such a value and print its parts. A string in a JSON object is
// secret if its key looks secret, if it has several lines, or if it looks random. A number
// is secret if its key looks secret. Other strings, such as a type, a project or an address,
// are not secret. An element of a list has the key of the list. At the top level of a JSON
// text, where there is no key, a string and the elements of a list are secret.
func contents(value string) []string {
	f := finder{}
	f.json(value, 0)
	f.found = append(f.found, shaped(value)...)
	return f.found[:min(len(f.found), maxContents)]
}

// finder collects the secrets inside JSON.
type finder struct {
	found []string
}

// json collects the secrets of a text if it is a JSON document.
func (f *finder) json(text string, depth int) {
	text = strings.TrimSpace(text)
	if depth >= maxNesting || text == "" || !strings.ContainsRune(`{["`, rune(text[0])) {
		return
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return
	}
	if _, err := decoder.Token(); err != io.EOF {
		return // more than one value: not a JSON document
	}
	f.walk(value, true, depth)
}

// walk collects the secrets of a decoded value. SecretKey is true if the key of the value
// looks secret, and at the top level of a JSON text.
func (f *finder) walk(value any, secretKey bool, depth int) {
	if len(f.found) >= maxContents {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			// The key "value" also looks secret if the key of its object does.
			f.walk(value[key], looksSecret(snakeCase(key)) || key == "value" && secretKey, depth)
		}
	case []any:
		for _, element := range value {
			f.walk(element, secretKey, depth)
		}
	case json.Number:
		if secretKey {
			f.found = append(f.found, value.String())
		}
	case string:
		if secretKey || strings.Contains(strings.TrimSpace(value), "\n") || looksRandom(value) {
			f.found = append(f.found, value)
		}
		f.found = append(f.found, shaped(value)...)
		f.json(value, depth+1)
	}
}

// snakeCase inserts underscores between the parts of a name in camel case.
func snakeCase(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if lower && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r) || unicode.IsDigit(r)
		b.WriteRune(r)
	}
	return b.String()
}

// looksRandom reports whether a text is probably a token: at least minRandom letters, digits
// and signs, with lower case, upper case and digits among them, and with at least two changes
// of kind in five characters on average.
func looksRandom(text string) bool {
	const (
		small = iota + 1
		capital
		digit
		sign
	)

	changes, last := 0, 0
	var seen [sign + 1]bool
	for i := range len(text) {
		kind := 0
		switch c := text[i]; {
		case 'a' <= c && c <= 'z':
			kind = small
		case 'A' <= c && c <= 'Z':
			kind = capital
		case '0' <= c && c <= '9':
			kind = digit
		case strings.IndexByte("+/=_-.~", c) >= 0:
			kind = sign
		default:
			return false
		}
		if seen[kind] = true; kind != last {
			changes++
		}
		last = kind
	}
	return len(text) >= minRandom && seen[small] && seen[capital] && seen[digit] && changes*5 >= len(text)*2
}

// passwords returns the passwords of the URLs in a text, both percent-encoded and
// decoded, and the parts of their paths and queries that look random, such as the last part of the URL
// of a webhook. A password is returned together with its user, as "user:password@", if it is
// shorter than minSecret, if it equals the user, or if the text before the "://" ends with
// it, such as the scheme.
func passwords(text string) []string {
	var found []string
	for {
		before, remaining, ok := strings.Cut(text, "://")
		if !ok {
			return found
		}
		text = remaining
		for part := range strings.FieldsFuncSeq(beforeSpace(remaining), isURLSeparator) {
			if looksRandom(part) {
				found = append(found, part)
			}
		}
		user, password, ok := userinfo(remaining)
		if !ok {
			continue
		}

		if password == "" {
			continue
		}

		forms := []string{password}
		if meant, err := url.PathUnescape(password); err == nil && meant != password {
			forms = append(forms, meant)
		}
		for _, form := range forms {
			if utf8.RuneCountInString(form) < minSecret || form == user || strings.HasSuffix(before, form) {
				form = user + ":" + form + "@"
			}
			found = append(found, form)
		}
	}
}

// userinfo returns the user and the password at the beginning of a URL without its
// scheme. If there is no @ before the first slash, the password may contain slashes and ends
// at the last @. If the text before that slash has no colon, or only digits follow its colon,
// it is a host with a port, and there is no password.
func userinfo(text string) (user, password string, ok bool) {
	text = beforeSpace(text)
	authority, _, path := strings.Cut(text, "/")
	at := strings.LastIndexByte(authority, '@')
	if at < 0 && path { // the password may contain the slash
		_, port, colon := strings.Cut(authority, ":")
		if !colon || strings.Trim(port, "0123456789") == "" {
			return "", "", false
		}
		authority, at = text, strings.LastIndexByte(text, '@')
	}
	if at < 0 {
		return "", "", false
	}
	user, password, _ = strings.Cut(authority[:at], ":")
	return user, password, true
}

// beforeSpace returns the text before the first quotation mark or space, up to maxURL bytes.
func beforeSpace(text string) string {
	text = text[:min(len(text), maxURL)]
	if end := strings.IndexAny(text, "\" \t\r\n"); end >= 0 {
		return text[:end]
	}
	return text
}

func isURLSeparator(r rune) bool { return strings.ContainsRune("/?&=#:@,;", r) }
