package schema_test

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
)

var update = flag.Bool("update", false, "write the problems into the golden files")

// files returns a function for Source.ReadFile that reads these files. Content has the text of
// each file by its path.
func files(content map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		text, ok := content[name]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return []byte(text), nil
	}
}

// thisRelease supports every value, and gives jobs 30 seconds to stop.
var thisRelease = schema.Release{StopGrace: 30 * time.Second}

// source returns a file with this content, without variables.
func source(content string) schema.Source {
	return schema.Source{
		Path:       "agent.yaml",
		Content:    []byte(content),
		Executable: "/opt/cmwa/cmwa",
		Release:    thisRelease,
	}
}

func TestLoadProblems(t *testing.T) {
	paths, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(paths) < 120 {
		t.Fatalf("found %d files, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			src := source(string(content))
			src.Path = filepath.Base(path)
			src.Environ = map[string]string{"HOME": "/home/agent"}
			src.ReadFile = files(map[string]string{"two-lines": "pul-a\npul-b\n", "empty": "\n", "token": "pul-a\n",
				"key.pem":    "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
				"broken.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"})
			config, problems := schema.Load(src)
			if (config == nil) != (len(problems.Errors()) > 0) {
				t.Errorf("Load returns a configuration: %t, and %d errors; want either a configuration or errors",
					config != nil, len(problems.Errors()))
			}
			var got strings.Builder
			for _, p := range problems {
				got.WriteString(p.Severity.String() + " " + string(p.Rule) + "\n" + p.String() + "\n")
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) == 0 {
				t.Error("no problem is reported")
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("run with -update if the change is intended:\n%s", diff)
			}
		})
	}
}
