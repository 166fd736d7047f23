package schema_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// mountReadOnly makes a directory read-only with a mount, or skips the test if this user cannot
// mount.
func mountReadOnly(t *testing.T, directory string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a directory")
	}
	if err := unix.Mount(directory, directory, "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", directory, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
