//go:build linux || darwin

package process

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// kinship is how long after its supervisor a runner has surely been started.
// No process id comes back as quickly.
const kinship = 2 * time.Second

// proc is one process, as it was when it was looked at.
type proc struct {
	pid     int
	session int           // id of its session's leader
	began   time.Duration // when it started, from some moment that is the same for all
	stamp   string        // the same in words, and in which run of the system: with pid, its identity
	ended   bool          // it is only there to be reaped
}

// leader is the supervisor of a job, as it is written down. The zero value is
// no process.
type leader struct {
	PID   int           `json:"pid"`
	Began time.Duration `json:"began"`
	Stamp string        `json:"stamp"`
}

// is reports whether a process is the supervisor.
func (l leader) is(p proc) bool { return l.PID > 0 && p.pid == l.PID && p.stamp == l.Stamp }

// leads reports whether a process is of the supervisor's session, given what
// its id stands for now, if there is such a process. When the supervisor has
// gone, its session may have gone as well and another have its number: then
// only a process of its own first moments is proved to be of it, which is what
// the runner is, who hides its environment from users other than root.
func (l leader) leads(p, now proc, there bool) bool {
	switch {
	case l.PID <= 0 || p.session != l.PID:
		return false
	case there:
		return l.is(now)
	default:
		return p.began >= l.Began && p.began-l.Began < kinship
	}
}

// gone reports whether an error says that there is no such process or file, or
// that it is another user's and so none of ours. Any other error, such as too
// many open files (EMFILE), says nothing.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// kill kills this process and no other: the handle is taken first, and what it
// is a handle of is compared then. On Linux the handle pins the process; where
// it is only a number, the time between the two is all that is left to chance.
func (p proc) kill() {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return
	}
	defer func() { _ = handle.Release() }()
	if now, there, err := look(p.pid); err == nil && there && now.stamp == p.stamp {
		_ = handle.Kill() // one that cannot be killed is found again
	}
}
