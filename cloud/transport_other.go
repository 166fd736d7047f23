//go:build !linux

package cloud

import "syscall"

// limitUnacked does nothing, because only Linux has the option TCP_USER_TIMEOUT.
func limitUnacked(_, _ string, _ syscall.RawConn) error { return nil }
