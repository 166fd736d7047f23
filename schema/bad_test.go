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
	"github.com/cmwa-project/cmwa/schema/position"
)

var update = flag.Bool("update", false, "write the files that tests compare with")

// golden compares a text with a file. With -update, it writes the text into the file.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs (to write it, run the test with -update, or make reference):\n%s", path, diff)
	}
}

// goldenProblems compares problems with a golden file. There must be at least one.
func goldenProblems(t *testing.T, path string, problems position.Problems) {
	t.Helper()
	if len(problems) == 0 {
		t.Error("no problem is reported")
	}
	var text strings.Builder
	for _, p := range problems {
		text.WriteString(p.Severity.String() + " " + string(p.Rule) + "\n" + p.String() + "\n")
	}
	golden(t, path, text.String())
}

// textFile is a file of testdata or of an archive there.
type textFile struct{ path, content string }

// corpus returns the files that match the patterns. Each pattern must match a file, and all
// patterns together at least least files.
func corpus(t testing.TB, least int, patterns ...string) (all []textFile) {
	t.Helper()
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s matches %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, textFile{path, string(content)})
		}
	}
	if len(all) < least {
		t.Fatalf("%q match %d files, want at least %d", patterns, len(all), least)
	}
	return all
}

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

// thisRelease supports every value, and needs two minutes to stop.
var thisRelease = schema.Release{StopTime: 2 * time.Minute}

// source returns a file with this content, without variables.
func source(content string) schema.Source {
	return schema.Source{
		Path: "agent.yaml", Content: []byte(content), Executable: "/opt/cmwa/cmwa", Release: thisRelease,
	}
}

// sourceWithFiles returns a file with this content, on a machine that has the files that the
// files of testdata name.
func sourceWithFiles(content string) schema.Source {
	src := source(content)
	src.Environ = map[string]string{"HOME": "/home/agent"}
	src.ReadFile = files(map[string]string{
		"two-lines": "pul-a\npul-b\n", "empty": "\n", "token": "pul-a\n",
		"key.pem":    "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		"broken.pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
	})
	return src
}

func TestLoadProblems(t *testing.T) {
	for _, file := range corpus(t, 120, "testdata/bad/*.yaml") {
		name := strings.TrimSuffix(file.path, ".yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			src := sourceWithFiles(file.content)
			src.Path = filepath.Base(file.path)
			config, problems := schema.Load(src)
			if (config == nil) != (len(problems.Errors()) > 0) {
				t.Errorf("Load returns a configuration: %t, and %d errors; want either a configuration or errors",
					config != nil, len(problems.Errors()))
			}
			goldenProblems(t, name+".golden", problems)
		})
	}
}
