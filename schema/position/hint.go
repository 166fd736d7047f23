package position

import (
	"fmt"
	"slices"
	"strings"
)

// Closest returns the candidate with the spelling most similar to a name, or an empty
// string if no candidate is similar. A similar candidate differs from the name in one letter,
// or in at most a quarter of the letters of the name. Case, dots, dashes, underscores and the
// prefix of the agent's variables are ignored. If no candidate is similar, Closest returns
// the candidate that is a prefix of the name or has the name as its prefix, unless there are
// several such candidates. Closest sorts the candidates.
func Closest(name string, candidates []string) string {
	if best := Nearest(name, candidates); best != "" {
		return best
	}
	if len(name) > longestName {
		return ""
	}
	return onlyPrefixed(normalized(name), candidates)
}

// longestName is the length of the longest name that is compared, in bytes.
const longestName = 64

// Nearest is [Closest] without the comparison of prefixes.
func Nearest(name string, candidates []string) string {
	if len(name) > longestName {
		return ""
	}
	normal := normalized(name)
	best, least := "", max(1, len(normal)/4)+1
	slices.Sort(candidates)
	for _, candidate := range candidates {
		other := normalized(candidate)
		if max(len(normal)-len(other), len(other)-len(normal)) >= least {
			continue // the lengths differ too much
		}
		if n := distance(normal, other); n < least {
			best, least = candidate, n
		}
	}
	return best
}

// onlyPrefixed returns the candidate that is a prefix of the name or has the name as its
// prefix. It returns an empty string if there is no such candidate, or more than one. Names
// of fewer than four letters are not compared.
func onlyPrefixed(name string, candidates []string) string {
	const shortest = 4
	found := ""
	for _, candidate := range candidates {
		normal := normalized(candidate)
		if min(len(name), len(normal)) < shortest || !strings.HasPrefix(name, normal) &&
			!strings.HasPrefix(normal, name) {
			continue
		}
		if found != "" {
			return ""
		}
		found = candidate
	}
	return found
}

var withoutSeparators = strings.NewReplacer("_", "", "-", "", ".", "")

// normalized returns a name for comparison: in lowercase, without separators and without
// the prefix of variables.
func normalized(name string) string {
	return strings.TrimPrefix(withoutSeparators.Replace(strings.ToLower(name)), "pulumiagent")
}

// distance returns the number of letters that are wrong, missing, added or swapped with
// their neighbour in one of two names.
func distance(a, b string) int {
	twoAbove, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		twoAbove, above, row = above, row, twoAbove
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], twoAbove[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// Bounds returns the end of a message about a number that is out of bounds, such as
// " from 1 to 9". A nil bound is omitted.
func Bounds(lower, upper *int64) string {
	switch {
	case lower != nil && upper != nil:
		return fmt.Sprintf(" from %d to %d", *lower, *upper)
	case lower != nil:
		return fmt.Sprintf(", at least %d", *lower)
	case upper != nil:
		return fmt.Sprintf(", at most %d", *upper)
	default:
		return ""
	}
}
