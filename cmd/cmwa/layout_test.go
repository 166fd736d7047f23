package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Limits of the layout. A file or a package that exceeds a limit should be divided.
const (
	maxFileLines    = 400   // lines of a source file
	maxFiles        = 30    // source files of a package
	maxCommandLines = 2_300 // lines of cmd/cmwa, which contains flags, wiring and signals only
)

// topLevel lists the files and folders at the top level of the repository. It omits names
// that begin with a dot, and the folder bin, which make build writes.
var topLevel = []string{
	"LICENSE", "Makefile", "README.md", "cloud", "cmd", "examples", "go.mod", "go.sum",
	"reconcile", "runtime", "schema", "testdata",
}

func TestLayout(t *testing.T) {
	root := filepath.Join("..", "..")

	t.Run("the top level has no other files or folders", func(t *testing.T) {
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
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

	files, lines := map[string]int{}, map[string]int{} // source files of each folder, and their lines
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(name, ".") && path != root:
			return fs.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		count := bytes.Count(content, []byte("\n"))
		if count > maxFileLines {
			t.Errorf("%s has %d lines, at most %d are allowed", path, count, maxFileLines)
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		files[folder]++
		lines[folder] += count
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, count := range files {
		if count > maxFiles {
			t.Errorf("package %s has %d source files, at most %d are allowed", folder, count, maxFiles)
		}
	}
	if count := lines["cmd/cmwa"]; count == 0 || count > maxCommandLines {
		t.Errorf("cmd/cmwa has %d lines, at most %d are allowed", count, maxCommandLines)
	}
}
