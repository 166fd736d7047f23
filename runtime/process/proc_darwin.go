package process

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of <sys/proc.h>.
const zombie = 5

// look looks at one process. An error means that the system does not say whether
// it is there. Of a process that is not there, the answer is of the wrong length
// (EIO).
func look(pid int) (p proc, there bool, err error) {
	if pid <= 0 {
		return proc{}, false, nil
	}
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	switch {
	case gone(err), errors.Is(err, unix.EIO):
		return proc{}, false, nil
	case err != nil:
		return proc{}, false, err
	}
	return read(info), true, nil
}

// everyone looks at all processes.
func everyone() ([]proc, error) {
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
		session = 0 // it has just gone
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

// carries reports whether the process was started with an entry in its
// environment, which stands behind its arguments. Of other users' processes
// that cannot be told.
func (p proc) carries(entry string) (bool, error) {
	text, err := unix.SysctlRaw("kern.procargs2", p.pid)
	if gone(err) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO) { // how it refuses to tell of others, and of zombies
		return false, nil
	}
	return bytes.Contains(text, []byte("\x00"+entry+"\x00")), err
}
