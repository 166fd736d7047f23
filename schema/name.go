package schema

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// longKeys are keys of Kubernetes that are longer than shown takes for a word
// otherwise. A test of Pod templates requires that no key is missing here.
var longKeys = []string{"preferredDuringSchedulingIgnoredDuringExecution", "requiredDuringSchedulingIgnoredDuringExecution"}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// shown returns a name as it may stand in a message: whatever does not look like
// a key or a variable may be a secret at the wrong place.
func shown(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.' || r == '$'
	}
	switch {
	case name == "", len(name) > 64, strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }), secretLike(name):
		return "(a key)"
	case len(name) > 32 && !strings.Contains(name, "_") && !slices.Contains(longKeys, name):
		return "(a key)"
	default:
		return name
	}
}

// secretLike reports whether a name looks as tokens and keys of well-known services
// do, or is as long as a secret and more mixed than a word.
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
