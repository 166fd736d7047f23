// Package servertest creates data directories for tests that start the service. No production code imports it.
package servertest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// memory is a file system in memory on each Linux (shm_overview(7)). In a container it may be small.
const (
	memory  = "/dev/shm"
	minimum = 1 << 30 // bytes that it must have free
)

// DataDirectory returns the path of a data directory that the service can create. The directory is in memory if this
// machine has a file system there, because the service waits for the disk before it answers, and many tests at a time
// would share the few writes per second of one disk. A benchmark measures the service with the disk.
func DataDirectory(t testing.TB) string {
	t.Helper()
	var free unix.Statfs_t
	_, benchmark := t.(*testing.B)
	if err := unix.Statfs(memory, &free); benchmark || err != nil || free.Bavail*uint64(free.Bsize) < minimum {
		return filepath.Join(t.TempDir(), "data")
	}
	parent, err := os.MkdirTemp(memory, "cmwa-cloud-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(parent, "data")
}
