package secret_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/schema/secret"
)

func TestTokens(t *testing.T) {
	long := strings.Repeat("a1B2", 10)
	for text, want := range map[string][]string{
		"":                                nil,
		"ghp_" + long:                     {"ghp_" + long},
		"token ghp_" + long + ".":         {"ghp_" + long},
		"a=pul-" + long + ";b=eyJ" + long: {"pul-" + long, "eyJ" + long},
		"https://x:glpat-" + long + "@h":  {"glpat-" + long},
		"xghp_" + long:                    nil, // within a name
		"ghp_short":                       nil,
		"pul-network-stack":               nil,
		"eyJ0eXAi." + long + "." + long:   {"eyJ0eXAi." + long + "." + long},
	} {
		if got := secret.Tokens(text); !slices.Equal(got, want) {
			t.Errorf("Tokens(%q) returns %q, want %q", text, got, want)
		}
	}

	t.Run("a prefix is enough for ContainsToken", func(t *testing.T) {
		for text, want := range map[string]bool{
			"pul-short": true, "xeyJ": true, "ghp_" + long: true, "ghp_short": false, "plain": false,
		} {
			if got := secret.ContainsToken(text); got != want {
				t.Errorf("ContainsToken(%q) returns %t, want %t", text, got, want)
			}
		}
	})

	t.Run("many prefixes cost linear time", func(t *testing.T) {
		if got := secret.Tokens(strings.Repeat("ghp_", 1<<18)); len(got) != 1 {
			t.Errorf("got %d tokens, want 1", len(got))
		}
	})
}
