package process

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const zombie = 5 // SZOMB of <sys/proc.h>

// inspectProcess returns one process. An error means that the system does not report
// whether it exists. For a process that does not exist, the response has the wrong length
// (EIO).
func inspectProcess(pid int) (p proc, exists bool, err error) {
	if pid <= 0 {
		return proc{}, false, nil
	}
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	switch {
	case isGone(err), errors.Is(err, unix.EIO):
		return proc{}, false, nil
	case err != nil:
		return proc{}, false, err
	}
	return read(info), true, nil
}

func listProcesses() ([]proc, error) {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil, err
	}
	all := make([]proc, 0, len(infos))
	for i := range infos {
		all = append(all, read(&infos[i]))
	}
	return all, nil
}

func read(info *unix.KinfoProc) proc {
	pid := int(info.Proc.P_pid)
	session, err := unix.Getsid(pid)
	if err != nil {
		session = 0 // it has just ended
	}
	start := info.Proc.P_starttime
	return proc{
		pid:     pid,
		session: session,
		began:   time.Duration(start.Nano()),
		stamp:   fmt.Sprintf("%d.%06d", start.Sec, start.Usec),
		ended:   info.Proc.P_stat == zombie,
	}
}

// hasVariable reports whether the process was started with an entry NAME=VALUE in its
// environment, which follows its arguments. It returns false for processes of other
// users.
func (p proc) hasVariable(entry string) (bool, error) {
	text, err := unix.SysctlRaw("kern.procargs2", p.pid)
	if isGone(err) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO) { // of another user, or a zombie
		return false, nil
	}
	return bytes.Contains(text, []byte("\x00"+entry+"\x00")), err
}
