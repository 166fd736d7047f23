package runner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// killCounters are the files in which Linux counts the processes of a container that it
// killed for lack of memory, for control groups of version 2 and version 1 (kernel
// documentation, cgroup-v2 and cgroup-v1/memory).
var killCounters = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// killedForMemory returns how many processes of this instance were killed for lack of
// memory. If the kernel kills a child of the shell, the exit code of the shell may not show
// this. The count is 0 if the kernel does not provide it, and outside of containers, where
// it would include other processes.
func (j *job) killedForMemory() int {
	if j.handoff.Root != "/" {
		return 0
	}
	for _, path := range killCounters {
		text, err := os.ReadFile(path)
		if count, ok := killCount(string(text)); ok && err == nil {
			return count
		}
	}
	return 0
}

// killCount parses the count from lines of a name and a number.
func killCount(text string) (int, bool) {
	for line := range strings.Lines(text) {
		if name, number, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == "oom_kill" {
			count, err := strconv.Atoi(number)
			return count, err == nil
		}
	}
	return 0, false
}

func memoryNote(killed int) string {
	if killed == 1 {
		return "Warning: the system has killed a process of this step because memory ran out"
	}
	return fmt.Sprintf("Warning: the system has killed %d processes of this step because memory ran out", killed)
}
