package schema_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

// generated matches the directories with sources from which kubectl and helm generate manifests.
// The tests of cmd/cmwa vet the generated manifests.
var generated = regexp.MustCompile(`^\.\./examples/(kubernetes|chart)/`)

func TestVetExamples(t *testing.T) {
	vetted := 0
	err := filepath.WalkDir("../examples", func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "program" {
			return fs.SkipDir // a Pulumi program, not a configuration of an agent
		}
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" { // the files of CI services end in .yml
			return err
		}
		if generated.MatchString(filepath.ToSlash(path)) && entry.Name() != schema.FileName {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		vetted++
		if problems := schema.Vet(schema.Source{Path: path, Content: content, Mode: 0o644}); len(problems) > 0 {
			t.Errorf("%s has problems:\n%v", path, problems)
		}
		return nil
	})
	if err != nil || vetted < 8 {
		t.Errorf("%d examples were vetted (%v), want 8 or more", vetted, err)
	}
}
