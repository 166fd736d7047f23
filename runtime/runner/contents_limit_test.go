//go:build !race

package runner

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestContentsLimit(t *testing.T) {
	t.Run("JSON costs a limited number of secrets", func(t *testing.T) {
		values := slices.Repeat([]string{"hunter2-hunter2"}, 100_000)
		large, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(contents(string(large))); n > maxContents {
			t.Errorf("got %d secrets, want at most %d", n, maxContents)
		}
	})

	// 128 KiB is the limit of Linux for one variable (MAX_ARG_STRLEN, execve(2)).
	t.Run("texts cost a limited number of secrets", func(t *testing.T) {
		for _, part := range []string{
			"://", "://a:", "https://u:p@", "apikey=", "password='", "ghp_", "eyJ", "a=", `"token":`,
			"-----BEGIN PRIVATE KEY-----", "password=hunter2-of-many;", "Zk8Qw2nV7xLr5TbYp0JdHs4G/",
		} {
			if n := len(shaped(strings.Repeat(part, 1<<17/len(part)))); n > maxContents {
				t.Errorf("many of %q are %d secrets, want at most %d", part, n, maxContents)
			}
		}
	})
}
