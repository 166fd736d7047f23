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

// Limits of what is taken out of one value.
const (
	maxContents = 200 // secrets
	maxNesting  = 4   // JSON texts inside JSON texts
	leastRandom = 24  // characters of a text that counts as random
)

// contents returns the secrets inside a secret value that is JSON or holds URLs,
// because programs decode such a value and print its parts. In a JSON object a
// string is secret if its key looks secret, if it has several lines, or if it looks
// random. Others, such as a type, a project or an address, are not. An element of a
// list counts like a string in the place of the list, and so does a number.
func contents(value string) []string {
	f := finder{}
	f.json(value, 0)
	f.found = append(f.found, passwords(value)...)
	return f.found[:min(len(f.found), maxContents)]
}

// finder collects the secrets inside JSON.
type finder struct {
	found []string
}

// json looks into a text that may be JSON.
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
		return // more than one value is something else
	}
	f.walk(value, true, depth)
}

// walk looks at a value whose key looks secret, or does not.
func (f *finder) walk(value any, telling bool, depth int) {
	if len(f.found) >= maxContents {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			// A key such as "value" says nothing; what it belongs to does.
			f.walk(value[key], looksSecret(underlined(key)) || key == "value" && telling, depth)
		}
	case []any:
		for _, element := range value {
			f.walk(element, telling, depth)
		}
	case json.Number:
		if telling {
			f.found = append(f.found, value.String())
		}
	case string:
		if telling || strings.Contains(strings.TrimSpace(value), "\n") || looksRandom(value) {
			f.found = append(f.found, value)
		}
		f.found = append(f.found, passwords(value)...)
		f.json(value, depth+1)
	}
}

// underlined puts underlines between the words of a name in camel case.
func underlined(name string) string {
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

// looksRandom reports whether a text is probably a token: one long word of small
// and capital letters and digits that change more often than they do in names.
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
	return len(text) >= leastRandom && seen[small] && seen[capital] && seen[digit] && changes*5 >= len(text)*2
}

// passwords returns the passwords of the URLs in a text, as they are written and
// as they are meant. One that is short or a common word is taken together with
// the user before it. A user that looks random is a token and is taken too.
func passwords(text string) []string {
	var found []string
	for {
		before, rest, ok := strings.Cut(text, "://")
		if !ok {
			return found
		}
		text = rest
		user, password, ok := login(rest)
		if !ok {
			continue
		}
		if looksRandom(user) {
			found = append(found, user)
		}
		if password == "" {
			continue
		}
		forms := []string{password}
		if meant, err := url.PathUnescape(password); err == nil && meant != password {
			forms = append(forms, meant)
		}
		for _, form := range forms {
			if utf8.RuneCountInString(form) < leastSecret || form == user || strings.HasSuffix(before, form) {
				form = user + ":" + form + "@"
			}
			found = append(found, form)
		}
	}
}

// login returns the user and the password that a URL begins with behind its
// scheme. A password may hold slashes that should have been escaped, unless what
// stands before the first one is a port.
func login(text string) (user, password string, ok bool) {
	if end := strings.IndexAny(text, "\" \t\r\n"); end >= 0 {
		text = text[:end]
	}
	authority, _, path := strings.Cut(text, "/")
	at := strings.LastIndexByte(authority, '@')
	if at < 0 && path {
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
