package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// inspectProcess returns one process. An error means that the system does not report
// whether it exists.
func inspectProcess(pid int) (p proc, exists bool, err error) {
	this, err := bootID()
	if err != nil {
		return proc{}, false, err
	}
	return inspectProcessIn(pid, this)
}

// inspectProcessIn is inspectProcess with a known boot id.
func inspectProcessIn(pid int, boot string) (p proc, exists bool, err error) {
	if pid <= 0 {
		return proc{}, false, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	switch {
	case isGone(err):
		return proc{}, false, nil
	case err != nil:
		return proc{}, false, err
	}
	p, exists = parseStat(pid, string(text), boot)
	return p, exists, nil
}

// parseStat parses a line of /proc/PID/stat (proc_pid_stat(5)). The name of the program
// is in parentheses and may contain any character, so parsing begins after the last
// parenthesis. The start time is relative to the boot, so the stamp consists of both.
func parseStat(pid int, line, boot string) (proc, bool) {
	const state, session, start = 0, 3, 19 // indexes of fields after the name
	const tick = 10 * time.Millisecond     // USER_HZ is 100 wherever Go runs
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) <= start {
		return proc{}, false
	}
	leader, sessionErr := strconv.Atoi(fields[session])
	ticks, startErr := strconv.ParseUint(fields[start], 10, 48)
	if sessionErr != nil || startErr != nil {
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

// bootID identifies the current boot of the system: after a reboot, the same process id
// and start time may occur again. If the system hides it, the start time must suffice.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	switch {
	case isGone(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return "@" + strings.TrimSpace(string(id)), nil
}

func listProcesses() ([]proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	this, err := bootID()
	if err != nil {
		return nil, err
	}
	var all []proc
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		p, exists, err := inspectProcessIn(pid, this)
		if err != nil {
			return nil, err
		}
		if exists {
			all = append(all, p)
		}
	}
	return all, nil
}

// hasVariable reports whether the process was started with an entry NAME=VALUE in its
// environment. It returns false for processes of other users.
func (p proc) hasVariable(entry string) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	if isGone(err) {
		return false, nil
	}
	return bytes.Contains(append([]byte{0}, text...), []byte("\x00"+entry+"\x00")), err
}
