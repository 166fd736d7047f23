package position

import (
	"fmt"
	"slices"
	"strings"
)

// Closest returns the word that is spelled most like a name, or the empty text if
// none is close. A word is close if it differs in one letter, or in at most one of
// four letters; case, dots, dashes, underscores and the prefix of the agent's
// variables do not count. Without such a word, Closest returns the only word that
// begins with the name or with which the name begins.
func Closest(name string, words []string) string {
	if best := Nearest(name, words); best != "" {
		return best
	}
	if len(name) > longestName {
		return ""
	}
	return onlyPrefixed(normalized(name), words)
}

// longestName is the length of the longest name that is compared, in bytes.
const longestName = 64

// Nearest is Closest without its comparison of prefixes.
func Nearest(name string, words []string) string {
	if len(name) > longestName {
		return ""
	}
	plain := normalized(name)
	best, least := "", max(1, len(plain)/4)+1
	slices.Sort(words)
	for _, word := range words {
		other := normalized(word)
		if max(len(plain)-len(other), len(other)-len(plain)) >= least {
			continue // the difference in length alone is too large
		}
		if n := distance(plain, other); n < least {
			best, least = word, n
		}
	}
	return best
}

// onlyPrefixed returns the only word that is a prefix of the name or has the name
// as its prefix.
func onlyPrefixed(name string, words []string) string {
	const shortest = 4
	found := ""
	for _, word := range words {
		plain := normalized(word)
		if min(len(name), len(plain)) < shortest || !strings.HasPrefix(name, plain) &&
			!strings.HasPrefix(plain, name) {
			continue
		}
		if found != "" {
			return ""
		}
		found = word
	}
	return found
}

// normalized returns a name in the form in which names are compared.
func normalized(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' {
			return -1
		}
		return r
	}, strings.ToLower(name))
	return strings.TrimPrefix(plain, "pulumiagent")
}

// distance returns the number of letters in which two names differ: wrong, missing,
// added or swapped with their neighbour.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			other := 1
			if a[i-1] == b[j-1] {
				other = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+other)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// Bounds returns the end of a message about a number that has bounds; nil is no
// bound.
func Bounds(lowest, highest *int64) string {
	switch {
	case lowest != nil && highest != nil:
		return fmt.Sprintf(" from %d to %d", *lowest, *highest)
	case lowest != nil:
		return fmt.Sprintf(", at least %d", *lowest)
	case highest != nil:
		return fmt.Sprintf(", at most %d", *highest)
	default:
		return ""
	}
}
