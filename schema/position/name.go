package position

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// longKeys are the keys of Pods that are longer than any other word that SafeName
// returns. A test of messages requires that the list is complete.
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

// SafeName returns a name as a message may show it. A name that does not look like a
// key or a variable may be a secret in the wrong place, and is replaced.
func SafeName(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.$", r)
	}
	switch {
	case name == "", len(name) > 64, secretLike(name):
		return "(a key)"
	case strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }):
		return "(a key)"
	case len(name) > 32 && !strings.Contains(name, "_") && !slices.Contains(longKeys, name):
		return "(a key)"
	default:
		return name
	}
}

// secretLike reports whether a name looks like a token or a key of a well-known
// service, or is as long as a secret and has more digits than a word.
func secretLike(name string) bool {
	for _, beginning := range []string{"ghp_", "gho_", "glpat-", "xox", "AKIA"} {
		if strings.HasPrefix(name, beginning) {
			return true
		}
	}
	const long, many = 16, 3
	small, digits := strings.Contains(name, "_"), 0
	for _, r := range name {
		small = small || r >= 'a' && r <= 'z'
		if r >= '0' && r <= '9' {
			digits++
		}
	}
	return secret.ContainsToken(name) || len(name) >= long && (digits >= many || !small)
}
