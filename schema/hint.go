package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Closest returns the word that is spelt most like a name, or nothing if none is
// near: one slip in four letters is near, and one slip always is. Case, dashes,
// underscores and the variables' prefix are no slips. Failing that, it returns
// the only word of which one is the beginning of the other.
func Closest(name string, words []string) string {
	if best := nearest(name, words); best != "" {
		return best
	}
	if len(name) > longestName {
		return ""
	}
	return begun(squashed(name), words)
}

// longestName is the length of the longest name that is compared, in bytes.
const longestName = 64

// nearest is Closest without the words of which one is the beginning of the other.
func nearest(name string, words []string) string {
	if len(name) > longestName {
		return ""
	}
	plain := squashed(name)
	best, least := "", max(1, len(plain)/4)+1
	slices.Sort(words)
	for _, word := range words {
		other := squashed(word)
		if max(len(plain)-len(other), len(other)-len(plain)) >= least {
			continue // no fewer slips than that
		}
		if n := slips(plain, other); n < least {
			best, least = word, n
		}
	}
	return best
}

// begun returns the only word that a name begins, or that begins with a name.
func begun(name string, words []string) string {
	const shortest = 4
	found := ""
	for _, word := range words {
		plain := squashed(word)
		if min(len(name), len(plain)) < shortest || !strings.HasPrefix(name, plain) && !strings.HasPrefix(plain, name) {
			continue
		}
		if found != "" {
			return ""
		}
		found = word
	}
	return found
}

func squashed(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' {
			return -1
		}
		return r
	}, strings.ToLower(name))
	return strings.TrimPrefix(plain, "pulumiagent")
}

// slips counts the letters that are wrong, missing, too many or swapped with
// their neighbour.
func slips(a, b string) int {
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

func between(lowest, highest *int64) string {
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
