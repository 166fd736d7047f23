package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestANameIsFreeAgainWhenItsPoolHasEnded(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	take := func(i *instances, want string) {
		t.Helper()
		if got, err := i.name("pool"); err != nil || got != want {
			t.Fatalf("the name is %q, %v; want %q", got, err, want)
		}
	}
	one, two, three := newInstances("host"), newInstances("host"), newInstances("host")
	take(one, "host")
	take(one, "host")
	take(two, "host-2")
	one.release("pool")
	one.release("pool")
	take(three, "host")
	take(one, "host-3")
	for _, i := range []*instances{one, two, three} {
		i.release("pool")
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left behind, %v", left, err)
	}
}
