//go:build !linux

package cloud

import "syscall"

// limitUnacked does nothing: this system has no such limit for one connection.
func limitUnacked(_, _ string, _ syscall.RawConn) error { return nil }
