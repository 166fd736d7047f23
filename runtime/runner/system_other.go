//go:build !linux

package runner

import "syscall"

// newProcessGroup makes a program the leader of a new process group.
func newProcessGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Hide does nothing: this system has no equivalent of PR_SET_DUMPABLE.
func Hide() error { return nil }
