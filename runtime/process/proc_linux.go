package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// look looks at one process. An error means that the system does not say whether
// it is there.
func look(pid int) (p proc, there bool, err error) {
	this, err := boot()
	if err != nil {
		return proc{}, false, err
	}
	return lookIn(pid, this)
}

func lookIn(pid int, boot string) (p proc, there bool, err error) {
	if pid <= 0 {
		return proc{}, false, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	switch {
	case gone(err):
		return proc{}, false, nil
	case err != nil:
		return proc{}, false, err
	}
	p, there = parseStat(pid, string(text), boot)
	return p, there, nil
}

// parseStat reads a line of /proc/PID/stat (proc_pid_stat(5)). The name of the
// program stands in parentheses and may hold anything, so reading begins behind
// the last one. The start is counted from boot, so both together are the stamp.
func parseStat(pid int, line, boot string) (proc, bool) {
	const state, session, start = 0, 3, 19 // counted from behind the name
	const tick = 10 * time.Millisecond     // USER_HZ is 100 wherever Go runs
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) <= start {
		return proc{}, false
	}
	leader, err := strconv.Atoi(fields[session])
	if err != nil {
		return proc{}, false
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 48)
	if err != nil {
		return proc{}, false
	}
	return proc{
		pid:     pid,
		began:   time.Duration(ticks) * tick,
		session: leader,
		stamp:   fields[start] + boot,
		ended:   fields[state] == "Z" || fields[state] == "X",
	}, true
}

// boot tells one run of the system from the next, where the same process id and
// the same start may come again. Systems that hide it are as safe as the start
// alone.
func boot() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	switch {
	case gone(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return "@" + strings.TrimSpace(string(id)), nil
}

// everyone looks at all processes.
func everyone() ([]proc, error) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []proc
	this, err := boot()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, there, err := lookIn(pid, this)
		if err != nil {
			return nil, err
		}
		if there {
			all = append(all, p)
		}
	}
	return all, nil
}

// carries reports whether the process was started with an entry in its
// environment. Of other users' processes that cannot be told.
func (p proc) carries(entry string) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	if gone(err) {
		return false, nil
	}
	return bytes.Contains(append([]byte{0}, text...), []byte("\x00"+entry+"\x00")), err
}
