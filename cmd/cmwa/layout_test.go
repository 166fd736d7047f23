package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// topLevel lists the files and directories at the top level of the repository. It omits names
// that begin with a dot, and the directory bin, which make build writes.
var topLevel = []string{
	"LICENSE", "Makefile", "README.md", "cloud", "cmd", "examples", "go.mod", "go.sum",
	"reconcile", "runtime", "schema", "testdata",
}

func TestLayout(t *testing.T) {
	t.Run("the top level has no other files or directories", func(t *testing.T) {
		entries, err := os.ReadDir(filepath.Join("..", ".."))
		noError(t, err)
		var names []string
		for _, entry := range entries {
			if name := entry.Name(); name != "bin" && !strings.HasPrefix(name, ".") {
				names = append(names, name)
			}
		}
		if !slices.Equal(names, topLevel) {
			t.Errorf("the top level is %v, want %v", names, topLevel)
		}
	})
}
