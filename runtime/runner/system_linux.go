package runner

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// groupOfItsOwn starts a program as the leader of a process group, which dies
// when the runner does.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Hide closes this process's memory, environment and open files to other
// processes of the same user that may not trace everything (PR_SET_DUMPABLE,
// prctl(2)): the steps of a job must not find its tokens there.
func Hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
