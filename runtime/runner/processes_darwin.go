package runner

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const zombie = 5 // SZOMB of <sys/proc.h>

// listProcesses returns all processes.
func listProcesses() ([]process, error) {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	all := make([]process, 0, len(infos))
	for i := range infos {
		info := &infos[i]
		start := info.Proc.P_starttime
		name := unix.ByteSliceToString(info.Proc.P_comm[:])
		all = append(all, process{
			processID: processID{pid: int(info.Proc.P_pid), began: fmt.Sprintf("%d.%06d", start.Sec, start.Usec)},
			parent:    int(info.Eproc.Ppid), group: int(info.Eproc.Pgid),
			name: name[:min(len(name), 15)], ended: info.Proc.P_stat == zombie,
		})
	}
	return all, nil
}

// handlesInterrupt reports whether a process handles SIGINT.
func handlesInterrupt(pid int) bool {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	return err == nil && info.Proc.P_sigcatch&(1<<(syscall.SIGINT-1)) != 0
}

// programOf returns the empty string: the name of a process's program file is not known here.
func programOf(int) string { return "" }
