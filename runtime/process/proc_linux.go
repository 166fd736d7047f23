package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// look looks at one process.
func look(pid int) (proc, bool) { return lookIn(pid, boot()) }

func lookIn(pid int, boot string) (proc, bool) {
	if pid <= 0 {
		return proc{}, false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return proc{}, false
	}
	return parseStat(pid, string(text), boot)
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
func boot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return "@" + strings.TrimSpace(string(id))
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
	this := boot()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := lookIn(pid, this); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// carries reports whether the process was started with an entry in its
// environment. Of other users' processes that cannot be told.
func (p proc) carries(entry string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && bytes.Contains(append([]byte{0}, text...), []byte("\x00"+entry+"\x00"))
}
