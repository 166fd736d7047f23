//go:build !linux

package cloud

import "syscall"

// limitUnacked does nothing, as this system has no such limit for a single connection.
func limitUnacked(_, _ string, _ syscall.RawConn) error { return nil }
