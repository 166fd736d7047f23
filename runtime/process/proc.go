//go:build linux || darwin

package process

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// startWindow is the time after the start of a supervisor within which its runner starts.
// The system does not reuse process ids within this time.
const startWindow = 2 * time.Second

// proc is a snapshot of one process.
type proc struct {
	pid     int
	session int           // id of the leader of its session
	began   time.Duration // start time, relative to a point that is the same for all processes
	stamp   string        // start time and boot of the system; with pid, the identity of the process
	ended   bool          // it is a zombie
}

// leader identifies the supervisor of a job. It is the content of leader.json. The zero
// value identifies no process.
type leader struct {
	PID   int           `json:"pid"`
	Began time.Duration `json:"began"`
	Stamp string        `json:"stamp"`
}

// is reports whether a process is the supervisor.
func (l leader) is(p proc) bool { return l.PID > 0 && p.pid == l.PID && p.stamp == l.Stamp }

// owns reports whether a process is in the session of the supervisor. Now is the process
// that has the supervisor's id now, if one exists. If no process has this id, the session of
// the supervisor may have ended, and another session may have had the same id since. Then
// only a process that started within startWindow of the supervisor is proved to be in the
// session. The runner is such a process. It cannot be found by its environment, which only
// root can read.
func (l leader) owns(p, now proc, exists bool) bool {
	switch {
	case l.PID <= 0 || p.session != l.PID:
		return false
	case exists:
		return l.is(now)
	default:
		return p.began >= l.Began && p.began-l.Began < startWindow
	}
}

// isGone reports whether an error means that a process or file does not exist, or that it
// belongs to another user and therefore not to a job. Other errors, such as too many open
// files (EMFILE), do not mean this.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// kill kills this process and no other: it gets a handle first, and then compares the
// identity of the process. On Linux the handle always refers to the same process. On other
// systems the handle is only the process id. There, kill can hit another process if the id
// is reused directly after the comparison.
func (p proc) kill() {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return
	}
	defer func() { _ = handle.Release() }()
	if now, exists, err := inspectProcess(p.pid); err == nil && exists && now.stamp == p.stamp {
		_ = handle.Kill() // if this fails, the caller finds the process again
	}
}
