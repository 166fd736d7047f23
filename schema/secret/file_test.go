package secret_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/schema/secret"
)

// regularAndPipe creates a directory with a file, a pipe and a link to the file.
func regularAndPipe(t *testing.T) (directory, file, pipe, link string) {
	t.Helper()
	directory = t.TempDir()
	in := func(name string) string { return filepath.Join(directory, name) }
	file, pipe, link = in("file"), in("pipe"), in("link")
	err := errors.Join(
		os.WriteFile(file, []byte("content"), 0o600), syscall.Mkfifo(pipe, 0o600), os.Symlink(file, link),
	)
	if err != nil {
		t.Fatal(err)
	}
	return directory, file, pipe, link
}

func TestOpenRegular(t *testing.T) {
	directory, file, pipe, link := regularAndPipe(t)
	t.Run("a file is opened, also through a link", func(t *testing.T) {
		for _, path := range []string{file, link} {
			if got, err := read(path); err != nil || got != "content" {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
	})
	t.Run("everything except a regular file is rejected", func(t *testing.T) {
		for _, path := range []string{directory, pipe, "/dev/zero"} {
			var pathError *fs.PathError
			_, err := read(path)
			if !errors.Is(err, secret.ErrNotRegular) || !errors.As(err, &pathError) || pathError.Path != path {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	t.Run("a missing file is fs.ErrNotExist", func(t *testing.T) {
		if _, err := read(filepath.Join(directory, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
}

func read(path string) (string, error) {
	file, _, err := secret.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	return string(content), err
}

// TestOpenRegularRace replaces the file by a pipe again and again. A pipe that replaces the
// file after the check would block a reader until another process writes to it.
func TestOpenRegularRace(t *testing.T) {
	_, file, pipe, path := regularAndPipe(t)
	const reads = 2000 // of each kind
	done := make(chan error, 1)
	stop := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.Symlink([]string{pipe, file}[i%2], path+".new")
				_ = os.Rename(path+".new", path)
			}
		}
	}()
	go func() {
		for files, pipes := 0, 0; files < reads || pipes < reads; {
			content, err := read(path)
			switch {
			case err == nil && content == "content":
				files++
			case errors.Is(err, secret.ErrNotRegular):
				pipes++
			default:
				done <- fmt.Errorf("read %q, %w", content, err)
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("OpenRegular blocks until the pipe has a writer")
	}
	close(stop)
	<-swapped
	if t.Failed() {
		if writer, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = writer.Close() // releases the reader
		}
	}
}

func TestMakeDirectory(t *testing.T) {
	t.Run("a new directory has the mode 0700", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "new")
		for range 2 {
			if err := secret.MakeDirectory(path); err != nil {
				t.Fatal(err)
			}
		}
		checkMode(t, path, 0o700)
	})
	t.Run("the permissions of an existing directory are corrected", func(t *testing.T) {
		path := t.TempDir()
		if err := errors.Join(os.Chmod(path, 0o755), secret.MakeDirectory(path)); err != nil {
			t.Fatal(err)
		}
		checkMode(t, path, 0o700)
	})
	for name, create := range map[string]func(path string) error{
		"a file in its place":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a link in its place":         func(path string) error { return os.Symlink("/tmp", path) },
		"a missing parent":            func(path string) error { return os.Remove(filepath.Dir(path)) },
		"a directory of another user": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), chown(t, path)) },
	} {
		t.Run(name+" is an error", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "parent", "directory")
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), create(path)); err != nil {
				t.Fatal(err)
			}
			if err := secret.MakeDirectory(path); err == nil {
				t.Error("got no error")
			}
		})
	}
}

// chown gives a directory to another user, or skips the test if this user may not do so.
func chown(t *testing.T, path string) error {
	t.Helper()
	if os.Geteuid() != 0 {
		const missing = "only root can give a directory to another user: run this test as root"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return os.Chown(path, 4711, -1)
}

func checkMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != want {
		t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
	}
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	alone := func() {
		t.Helper()
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 1 {
			t.Errorf("the directory has %v, %v; want no other file", entries, err)
		}
	}
	t.Run("a file is created and replaced", func(t *testing.T) {
		for _, content := range []string{"old and long", "new"} {
			if err := secret.WriteFile(path, []byte(content)); err != nil {
				t.Fatal(err)
			}
			if got, err := read(path); err != nil || got != content {
				t.Errorf("got %q, %v", got, err)
			}
			checkMode(t, path, 0o600)
			alone()
		}
	})
	t.Run("a directory in its place is an error and stays", func(t *testing.T) {
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := secret.WriteFile(path, nil); err == nil {
			t.Error("got no error")
		}
		checkMode(t, path, 0o700)
		alone()
	})
	t.Run("a missing directory is an error", func(t *testing.T) {
		if err := secret.WriteFile(filepath.Join(path, "none", "file"), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}
