// Package filetest contains configuration files for tests, and helpers that write and check
// files. It is for the tests of package configure and of cmd/cmwa, which runs the same command.
// No production code imports it.
package filetest

import (
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

const (
	// Canary is a token that no output may show.
	Canary = "pul-c4n4ryc4n4ryc4n4ryc4n4ry"

	// OwnTokens is a configuration whose pools have their own credentials.
	OwnTokens = "# pools\npools:\n- name: a\n  token: pul-a\n" +
		"- name: b\n  oidc_token_file: /run/jwt\n  organization_name: acme\n  runner_pool_id: p\n"

	// Existing is a configuration with comments and an unknown key.
	Existing = "# ours\r\nlog_level: debug # for now\r\nunknown: [1, 2]\r\n\r\n" +
		"token:   'pul-old'  # from the console\r\n# end"
)

// Put writes a file with a mode.
func Put(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// Content returns the content of a file.
func Content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Mode returns the mode of a file. It does not follow a symbolic link.
func Mode(t *testing.T, name string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// Holds checks the names of the files in the current directory.
func Holds(t *testing.T, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("the directory contains %v, want %v", got, names)
	}
}

// Settings loads a file, which must have no problems, and returns its first pool.
func Settings(t *testing.T, name string) schema.Pool {
	t.Helper()
	source, err := schema.Find(schema.SearchPaths{Config: name})
	if err != nil {
		t.Fatal(err)
	}
	c, problems := schema.Load(source)
	if len(problems) > 0 {
		t.Fatalf("%v in\n%s", problems, source.Content)
	}
	return c.Pools[0]
}
