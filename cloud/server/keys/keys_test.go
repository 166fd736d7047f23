package keys

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// counting is a master key that counts its calls.
type counting struct {
	Master
	unwraps int
}

func (c *counting) Unwrap(ctx context.Context, wrapped []byte, purpose string) ([]byte, error) {
	c.unwraps++
	return c.Master.Unwrap(ctx, wrapped, purpose)
}

func newMaster(t *testing.T) *Local {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := CreateLocal(path); err != nil {
		t.Fatal(err)
	}
	master, err := OpenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	return master
}

func TestKeys(t *testing.T) {
	master := &counting{Master: newMaster(t)}
	all := New(master)
	wrapped, err := all.Make(t.Context(), "stack a")
	if err != nil {
		t.Fatal(err)
	}
	if wrapped[0] != 1 {
		t.Errorf("the wrapped key begins with %d, want 1", wrapped[0])
	}
	first, err := all.Unwrap(t.Context(), wrapped, "stack a")
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(master).Unwrap(t.Context(), wrapped, "stack a")
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal([]byte("text"), "value")
	if plain, err := second.Open(sealed, "value"); err != nil || string(plain) != "text" {
		t.Errorf("another process opens %q, %v", plain, err)
	}

	other, err := all.Make(t.Context(), "stack a")
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := all.Unwrap(t.Context(), other, "stack a")
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() error{
		"another key":     func() error { _, err := otherKey.Open(sealed, "value"); return err },
		"another purpose": func() error { _, err := first.Open(sealed, "definition"); return err },
		"a changed bit": func() error {
			_, err := first.Open(append(bytes.Clone(sealed[:len(sealed)-1]), sealed[len(sealed)-1]^1), "value")
			return err
		},
		"a later version": func() error { _, err := first.Open(append([]byte{2}, sealed[1:]...), "value"); return err },
		"no data":         func() error { _, err := first.Open(nil, "value"); return err },
		"another owner":   func() error { _, err := all.Unwrap(t.Context(), wrapped, "stack b"); return err },
		"another master key": func() error {
			_, err := New(newMaster(t)).Unwrap(t.Context(), wrapped, "stack a")
			return err
		},
	} {
		if err := open(); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %v, want %v", name, err, ErrSealed)
		}
	}
}

// A key of stack 7 and a value of it, as the first release stored them.
const (
	oldWrapped = "01c55bf1fa84dd0d1babefbd8e1ad73886e720e13f4427868432da769857082c36bfdbc03" +
		"7b30b986d83a09ec04b5bb08ee2624b8e02c848d289a50909"
	oldSealed = "01deac6635aab71da61b118c2368b5a491fee31b4c04c306d0507be1fccc843eca821390"
)

// TestKeysFormat opens what the first release wrote.
func TestKeysFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("m", Size)), 0o600); err != nil {
		t.Fatal(err)
	}
	master, err := OpenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	wrapped, err := hex.DecodeString(oldWrapped)
	if err != nil {
		t.Fatal(err)
	}
	key, err := New(master).Unwrap(t.Context(), wrapped, "stack 7")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := hex.DecodeString(oldSealed)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := key.Open(sealed, "value"); err != nil || string(plain) != "hunter2" {
		t.Errorf("the value is %q, %v, want hunter2", plain, err)
	}
}

func TestKeysCache(t *testing.T) {
	master := &counting{Master: newMaster(t)}
	all := New(master)
	wrapped, err := all.Make(t.Context(), "stack 0")
	if err != nil {
		t.Fatal(err)
	}
	unwrap := func() {
		t.Helper()
		if _, err := all.Unwrap(t.Context(), wrapped, "stack 0"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		unwrap()
	}
	if master.unwraps != 1 {
		t.Errorf("one key was unwrapped %d times, want once", master.unwraps)
	}
	for i := range cached { // as many other keys replace it
		purpose := fmt.Sprint("stack ", i+1)
		other, err := all.Make(t.Context(), purpose)
		if err == nil {
			_, err = all.Unwrap(t.Context(), other, purpose)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := master.unwraps
	unwrap()
	if master.unwraps != before+1 || all.cache.Len() != cached {
		t.Errorf("%d more calls and %d keys in memory, want 1 and %d", master.unwraps-before, all.cache.Len(), cached)
	}
}

func TestOpenLocal(t *testing.T) {
	key := strings.Repeat("k", Size)
	for _, test := range []struct {
		name  string
		files map[string]string // content by path
		open  string
		want  string // in the error; empty for success
	}{
		{"file", map[string]string{"a": key}, "a", ""},
		{"short file", map[string]string{"a": key[1:]}, "a", "a has 31 bytes and not 32"},
		{"long file", map[string]string{"a": key + "\n"}, "a", "a has 33 bytes and not 32"},
		{"directory", map[string]string{"d/a": key, "d/..1/a": key, "d/readme": "x"}, "d", ""},
		{"directory with two keys", map[string]string{"d/a": key, "d/b": key}, "d", "d has 2 files of 32 bytes"},
		{"directory without a key", map[string]string{"d/a": "x"}, "d", "d has 0 files of 32 bytes"},
	} {
		directory := t.TempDir()
		for name, content := range test.files {
			path := filepath.Join(directory, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := OpenLocal(filepath.Join(directory, test.open))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if _, err := OpenLocal(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := OpenLocal(os.DevNull); err == nil {
		t.Error("a device is opened")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{sealVersion})
	k, err := FromBytes(make([]byte, Size))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(k.Seal([]byte("x"), "other"))
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if plain, err := k.Open(sealed, "value"); err == nil {
			t.Fatalf("an invalid value was decrypted to %q", plain)
		}
	})
}
