//go:build !linux

package runner

import "syscall"

// groupOfItsOwn starts a program as the leader of a process group.
func groupOfItsOwn() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Hide does nothing: this system has no such thing.
func Hide() error { return nil }
