package schema_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
)

// searchRoot is a directory with the directories in which Find searches.
type searchRoot struct {
	t    *testing.T
	root string
}

func (h searchRoot) put(path, content string) string {
	h.t.Helper()
	return writeFile(h.t, filepath.Join(h.root, path), content)
}

func (h searchRoot) find() schema.Source {
	h.t.Helper()
	source, err := schema.Find(h.places(nil))
	if err != nil {
		h.t.Fatal(err)
	}
	return source
}

func (h searchRoot) places(environ map[string]string) schema.SearchPaths {
	return schema.SearchPaths{
		WorkingDirectory: filepath.Join(h.root, "here"), Home: filepath.Join(h.root, "home"), Root: h.root,
		Executable: filepath.Join(h.root, "bin", "cmwa"), Environ: environ,
	}
}

func TestLoadTokenFile(t *testing.T) {
	directory := t.TempDir()
	src := source("token_file: " + writeFile(t, filepath.Join(directory, "token"), "pul-disk\n"))
	if got := must(t, src).Pools[0].Token.Reveal(); got != "pul-disk" {
		t.Errorf("the token is %q", got)
	}
	const want = "agent.yaml:1:13: token_file: cannot read the file\n  hint: name a regular file"
	if got := loadOf("token_file: " + directory).Error(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFind(t *testing.T) {
	t.Run("a rename and a link change the file id, a write in place does not", func(t *testing.T) {
		h := searchRoot{t, t.TempDir()}
		path := h.put("here/"+schema.FileName, "token: first")
		id := func() schema.FileID {
			t.Helper()
			found := h.find()
			named, err := schema.Find(schema.SearchPaths{Config: path})
			if err != nil {
				t.Fatal(err)
			}
			if found.FileID != named.FileID || found.FileID == (schema.FileID{}) {
				t.Fatalf("the ids are %v and %v", found.FileID, named.FileID)
			}
			return found.FileID
		}
		first := id()
		h.put("here/"+schema.FileName, "token: in place")
		if in := id(); in != first {
			t.Errorf("after a write in place the id is %v, want %v", in, first)
		}
		aside := h.put("here/aside", "token: renamed")
		if err := os.Rename(aside, path); err != nil {
			t.Fatal(err)
		}
		renamed := id()
		if renamed == first {
			t.Errorf("after a rename the id is still %v", renamed)
		}
		target := h.put("there/file", "token: linked")
		if err := os.Symlink(target, path+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if linked := id(); linked == renamed {
			t.Errorf("after a link replaced the file the id is still %v", linked)
		}
	})

	t.Run("uses the first file in the documented order", func(t *testing.T) {
		h := searchRoot{t, t.TempDir()}
		// In ascending order of precedence: each file overrides all before it.
		for _, path := range []string{
			"bin/" + schema.OldFileName, "etc/" + schema.OldFileName, "etc/cmwa/" + schema.OldFileName,
			"home/" + schema.OldFileName, "here/" + schema.OldFileName,
			"bin/" + schema.FileName, "etc/" + schema.FileName, "etc/cmwa/" + schema.FileName,
			"home/" + schema.FileName, "here/" + schema.FileName,
		} {
			want := h.put(path, "token: "+path)
			source := h.find()
			if source.Path != want || string(source.Content) != "token: "+path {
				t.Errorf("found %s, want %s", source.Path, want)
			}
			// Before lists the missing files of higher precedence, so that they can be watched.
			for _, path := range source.Before {
				if _, err := os.Stat(path); err == nil {
					t.Errorf("%s exists, but is in the list of missing files", path)
				}
			}
			first := filepath.Join(h.root, "here", schema.FileName)
			if slices.Contains(source.Before, first) == (source.Path == first) {
				t.Errorf("got %v as missing files before %s", source.Before, source.Path)
			}
		}
		variable, flag := h.put("elsewhere/variable.yaml", "v"), h.put("elsewhere/flag.yaml", "f")
		places := h.places(map[string]string{"PULUMI_AGENT_CONFIG": variable})
		if source, err := schema.Find(places); err != nil || source.Path != variable {
			t.Errorf("found %s, %v, want the file that the variable names", source.Path, err)
		}
		places.Config = flag
		if source, err := schema.Find(places); err != nil || source.Path != flag {
			t.Errorf("found %s, %v, want the file that the flag names", source.Path, err)
		}
	})

	t.Run("a missing file is not an error", func(t *testing.T) {
		h := searchRoot{t, t.TempDir()}
		source := h.find()
		if source.Path == "" && source.FileID != (schema.FileID{}) {
			t.Errorf("without a file, the id is %v", source.FileID)
		}
		want := []string{
			filepath.Join(h.root, "here"), filepath.Join(h.root, "home"), filepath.Join(h.root, "etc/cmwa"),
			filepath.Join(h.root, "etc"), filepath.Join(h.root, "bin"),
		}
		if diff := cmp.Diff(want, source.Searched); diff != "" {
			t.Error(diff)
		}
		_, problems := schema.Load(source)
		if len(problems) != 1 || problems[0].Rule != position.RuleMissingToken ||
			!strings.Contains(problems[0].Hint, strings.Join(want, ", ")) {
			t.Errorf("without a token: %v", problems)
		}
		source.Environ = map[string]string{"PULUMI_AGENT_TOKEN": "pul-x"}
		if config, problems := schema.Load(source); config == nil {
			t.Errorf("with a token: %v", problems)
		}
	})

	t.Run("an unreadable file is an error", func(t *testing.T) {
		h := searchRoot{t, t.TempDir()}
		h.put("home/"+schema.FileName, "token: pul-x")
		if err := os.MkdirAll(filepath.Join(h.root, "here", schema.FileName), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := schema.Find(h.places(nil)); err == nil || !strings.Contains(err.Error(), "here/"+schema.FileName) {
			t.Errorf("got %v for a directory with the name of a configuration file", err)
		}
		places := h.places(nil)
		places.Config = filepath.Join(h.root, "none.yaml")
		if _, err := schema.Find(places); err == nil || !strings.Contains(err.Error(), "--config") ||
			!strings.Contains(err.Error(), "none.yaml") {
			t.Errorf("got %v for a named file that is missing", err)
		}
		places.Config = "/dev/zero"
		if _, err := schema.Find(places); err == nil {
			t.Error("Find accepts a device")
		}
	})

	t.Run("rejects a pipe", func(t *testing.T) {
		pipe := filepath.Join(t.TempDir(), "agent.yaml")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := schema.Find(schema.SearchPaths{Config: pipe}); err == nil ||
			!strings.Contains(err.Error(), pipe+": not a regular file") {
			t.Error(err)
		}
	})

	t.Run("stops reading a huge file after one mebibyte", func(t *testing.T) {
		h := searchRoot{t, t.TempDir()}
		path := h.put("here/"+schema.FileName, "token: pul-x\n")
		if err := os.Truncate(path, 100<<20); err != nil {
			t.Fatal(err)
		}
		source := h.find()
		if len(source.Content) > position.MaxFile+1 {
			t.Errorf("read %d bytes", len(source.Content))
		}
		config, problems := schema.Load(source)
		want := path + ": the file is larger than 1024 KiB\n" +
			"  hint: name a configuration file; no configuration is that long"
		if config != nil || problems.Error() != want {
			t.Errorf("%v, want %s", problems, want)
		}
	})
}
