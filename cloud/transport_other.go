//go:build !linux

package cloud

import "syscall"

// limitUnacked does nothing, because the option TCP_USER_TIMEOUT is only set on Linux.
func limitUnacked(_, _ string, _ syscall.RawConn) error { return nil }
