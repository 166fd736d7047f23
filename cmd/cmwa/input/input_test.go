package input

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// put writes a file, and creates its directory.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReaderDirectory(t *testing.T) {
	const config = "token_file: /t\n"
	directory := t.TempDir()
	for name, content := range map[string]string{
		"agent.yaml":                 config,
		"broken.yaml":                "log_level: [\n",
		"pulumi-workflow-agent.yaml": "nothing: known\n",
		"template.json":              `{"spec": {"containers": []}}`,
		"worker-pod.yaml":            "hostname: a\n",
		"k8s/configmap.yml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n" +
			"  pulumi-workflow-agent.yaml: |\n    " + config,
		"k8s/service.yaml":    "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"package.json":        `{"version": "1", "token": "x"}`,
		"compose.yaml":        "version: '3'\nservices: {a: {}}\n",
		"empty.yaml":          "",
		"README.md":           config,
		".git/agent.yaml":     config,
		".hidden.yaml":        config,
		"..data/mounted.yaml": config,
		"node/UPPER.YAML":     config,
		"node/notes.txt":      config,
	} {
		put(t, filepath.Join(directory, name), content)
	}
	for link, target := range map[string]string{
		"mounted.yaml": "..data/mounted.yaml", "dangling.yaml": "none", "node.yaml": "node",
	} {
		if err := os.Symlink(target, filepath.Join(directory, link)); err != nil {
			t.Fatal(err)
		}
	}

	files, err := Reader{Directories: true}.Read(t.Context(), []string{directory})
	if err != nil {
		t.Fatal(err)
	}
	relative := func(path string) string {
		name, err := filepath.Rel(directory, path)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	var checked, skipped, unread []string
	for i, source := range files.Sources {
		if files.Unread[i] != nil {
			unread = append(unread, relative(source.Path))
			continue
		}
		checked = append(checked, relative(source.Path))
	}
	for _, path := range files.Skipped {
		skipped = append(skipped, relative(path))
	}
	for _, c := range []struct{ what, got, want string }{
		{"checked", strings.Join(checked, " "),
			"agent.yaml broken.yaml k8s/configmap.yml mounted.yaml node/UPPER.YAML " +
				"pulumi-workflow-agent.yaml template.json worker-pod.yaml"},
		{"skipped", strings.Join(skipped, " "), "compose.yaml empty.yaml k8s/service.yaml package.json"},
		{"unread", strings.Join(unread, " "), "dangling.yaml"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, c.got, c.want)
		}
	}
}

func TestReader(t *testing.T) {
	t.Run("a link to a directory is read as the directory", func(t *testing.T) {
		parent := t.TempDir()
		put(t, filepath.Join(parent, "conf", "agent.yaml"), "token_file: /t\n")
		link := filepath.Join(parent, "link")
		if err := os.Symlink("conf", link); err != nil {
			t.Fatal(err)
		}
		files, err := Reader{Directories: true}.Read(t.Context(), []string{link})
		if want := filepath.Join(link, "agent.yaml"); err != nil || len(files.Unread) > 0 ||
			len(files.Sources) != 1 || files.Sources[0].Path != want {
			t.Errorf("got %v, %+v, want %s", err, files, want)
		}
	})
	t.Run("a directory without a file for the agent is a problem", func(t *testing.T) {
		files, err := Reader{Directories: true}.Read(t.Context(), []string{t.TempDir()})
		if err != nil || len(files.Sources) != 1 ||
			!strings.HasPrefix(files.Unread[0][0].Message, "the directory has no configuration, no Pod template") {
			t.Errorf("%v, %+v", err, files)
		}
	})
	t.Run("too many files for the agent are a problem", func(t *testing.T) {
		directory := t.TempDir()
		for i := range maxChecked + 1 {
			name := strings.Repeat("a", i%100) + string(rune('a'+i/100)) + ".yaml"
			put(t, filepath.Join(directory, name), "token: x\n")
		}
		files, err := Reader{Directories: true}.Read(t.Context(), []string{directory})
		last := len(files.Sources) - 1
		if err != nil || len(files.Unread[last]) == 0 ||
			!strings.Contains(files.Unread[last][0].Message, "more than 1000 files") {
			t.Errorf("%v, %d sources, %v", err, last+1, files.Unread)
		}
	})
	t.Run("Read returns when its context has ended", func(t *testing.T) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := (Reader{}).Read(ctx, []string{pipe}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestUnreadable(t *testing.T) {
	const secret = "pul-c4n4ry"
	denied := unreadable("x", "x", &fs.PathError{Op: "open", Path: secret, Err: syscall.EACCES})
	if !strings.Contains(denied.Message, "may not read") || denied.Hint == "" {
		t.Errorf("a file without read permission: got %+v", denied)
	}
	if other := unreadable("x", "x", errors.New(secret)); strings.Contains(other.String(), secret) {
		t.Errorf("the problem contains the text of an error that is not an errno: %v", other)
	}
}
