package objects

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func open(t *testing.T) (*Directory, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "objects")
	d, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return d, root
}

func keys(t *testing.T, b Bucket, prefix string) (found []string) {
	t.Helper()
	for object, err := range b.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		if object.Modified.IsZero() {
			t.Errorf("%s has no time", object.Key)
		}
		found = append(found, object.Key)
	}
	slices.Sort(found)
	return found
}

func TestSaveLoad(t *testing.T) {
	d, root := open(t)
	content := []byte(strings.Repeat(`{"state":true}`, 1000))
	key, sum, err := Save(t.Context(), d, "checkpoints/stack/update/1-", content)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(t.Context(), d, key, sum[:])
	if err != nil || string(got) != string(content) {
		t.Errorf("loaded %d bytes, %v", len(got), err)
	}
	info, err := os.Stat(filepath.Join(root, key))
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() >= int64(len(content)) {
		t.Errorf("the file has %v, %v", info, err)
	}

	// 1. Content with another hash is refused. 2. So is a file that is cut off.
	other := Pack([]byte("other"))
	for _, broken := range [][]byte{other, other[:len(other)-5], nil} {
		if err := d.Put(t.Context(), key, broken); err != nil {
			t.Fatal(err)
		}
		got, err := Load(t.Context(), d, key, sum[:])
		if err == nil || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("loaded %q, %v", got, err)
		}
	}
	if err := d.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(t.Context(), d, key, sum[:]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the deleted object: %v", err)
	}
}

func TestDirectoryList(t *testing.T) {
	d, root := open(t)
	for _, key := range []string{"a/b/1", "a/c/2", "d/3"} {
		if err := d.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if got := keys(t, d, ""); !slices.Equal(got, []string{"a/b/1", "a/c/2", "d/3"}) {
		t.Errorf("all are %v", got)
	}
	if got := keys(t, d, "a/"); !slices.Equal(got, []string{"a/b/1", "a/c/2"}) {
		t.Errorf("those below a are %v", got)
	}
	if got := keys(t, d, "missing/"); got != nil {
		t.Errorf("those below a missing prefix are %v", got)
	}
	for range d.List(t.Context(), "") {
		break // stops the walk
	}

	// Delete removes empty directories, but not the root. A second one is no error.
	for _, key := range []string{"a/b/1", "a/c/2", "d/3", "d/3"} {
		if err := d.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestDirectoryRefusesKeys(t *testing.T) {
	d, _ := open(t)
	for _, key := range []string{"", "../a", "/etc/passwd", "a/../../b"} {
		_, err := d.Get(t.Context(), key)
		if d.Put(t.Context(), key, nil) == nil || err == nil || d.Delete(t.Context(), key) == nil {
			t.Errorf("the key %q is accepted", key)
		}
	}
}

// TestDirectoryPutDelete writes into a directory that is removed at the same time.
func TestDirectoryPutDelete(t *testing.T) {
	d, _ := open(t)
	var all sync.WaitGroup
	for _, key := range []string{"a/1", "a/2"} {
		all.Go(func() {
			for range 300 {
				if err := d.Put(context.Background(), key, []byte(key)); err != nil {
					t.Error(err)
					return
				}
				if got, err := d.Get(context.Background(), key); err != nil || string(got) != key {
					t.Errorf("got %q, %v", got, err)
				}
				if err := d.Delete(context.Background(), key); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
