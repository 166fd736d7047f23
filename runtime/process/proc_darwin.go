package process

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of <sys/proc.h>.
const zombie = 5

// look looks at one process.
func look(pid int) (proc, bool) {
	if pid <= 0 {
		return proc{}, false
	}
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return proc{}, false
	}
	return read(info), true
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
func (p proc) carries(entry string) bool {
	text, err := unix.SysctlRaw("kern.procargs2", p.pid)
	return err == nil && bytes.Contains(text, []byte("\x00"+entry+"\x00"))
}
