//go:build !linux

package journal

import "os"

// syncData makes the contents of a file durable.
func syncData(file *os.File) error { return file.Sync() }
