package schema_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cmwa-project/cmwa/schema"
)

func TestEveryFileOfTheExamplesVetsClean(t *testing.T) {
	vetted := 0
	err := filepath.WalkDir("../examples", func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "program" {
			return fs.SkipDir // what a deployment runs, and no configuration of an agent
		}
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" { // the files of CI services end in .yml
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		vetted++
		if problems := schema.Vet(schema.Source{Path: path, Content: content, Mode: 0o644}); len(problems) > 0 {
			t.Errorf("%s is not clean:\n%v", path, problems)
		}
		return nil
	})
	if err != nil || vetted < 8 {
		t.Errorf("%d files, %v", vetted, err)
	}
}
