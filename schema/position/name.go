package position

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// longKeys are the keys of Pods that are longer than 32 letters. A test of messages fails
// if the list is incomplete.
var longKeys = []string{
	"preferredDuringSchedulingIgnoredDuringExecution",
	"requiredDuringSchedulingIgnoredDuringExecution",
}

// Join appends a key to a path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// SafeName returns a name for a message. It replaces a name that does not look like a key
// or a variable, because it may be a secret in the wrong place.
func SafeName(name string) string {
	other := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("_-.$", r)
	}
	switch {
	case name == "", len(name) > 64, secretLike(name), strings.ContainsFunc(name, other),
		len(name) > 32 && !strings.Contains(name, "_") && !slices.Contains(longKeys, name):
		return "(a key)"
	default:
		return name
	}
}

// secretLike reports whether a name looks like a token or a key of a well-known service,
// or is long and has many digits or only capital letters.
func secretLike(name string) bool {
	for _, prefix := range []string{"ghp_", "gho_", "glpat-", "xox", "AKIA"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	const minLength, minDigits = 16, 3
	notOnlyCapitals, digits := strings.Contains(name, "_"), 0
	for _, r := range name {
		notOnlyCapitals = notOnlyCapitals || r >= 'a' && r <= 'z'
		if r >= '0' && r <= '9' {
			digits++
		}
	}
	return secret.ContainsToken(name) || len(name) >= minLength && (digits >= minDigits || !notOnlyCapitals)
}
