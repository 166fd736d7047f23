package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/cmd/cli"
)

// TestReadmeQuickStart runs the commands of the README against a service, in their order. A test cannot
// run the agent, so nothing is followed. The commands that start a service are those of newService.
func TestReadmeQuickStart(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	p := newService(t)
	t.Chdir(t.TempDir())
	if err := os.Symlink(p.directory, "data"); err != nil {
		t.Fatal(err)
	}
	argument := regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
	count := 0
	for _, block := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```").FindAllStringSubmatch(string(readme), -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", "")) {
			line, _, _ = strings.Cut(line, "  #") // a comment
			line, ours := strings.CutPrefix(line, "bin/cmwa-cloud ")
			if !ours || strings.HasPrefix(line, "serve ") {
				continue
			}
			count++
			var args []string
			for _, text := range argument.FindAllString(line, -1) {
				if text != "--follow" {
					args = append(args, strings.Trim(text, `"'`))
				}
			}
			p.run(cli.ExitOK, args...)
		}
	}
	if count < 3 {
		t.Errorf("the README has only %d commands", count)
	}
	for _, file := range []string{"pool.token", "backup.tar", "restored/cloud.db"} {
		if _, err := os.Stat(filepath.FromSlash(file)); err != nil {
			t.Error(err)
		}
	}
}
