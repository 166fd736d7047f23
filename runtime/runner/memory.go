package runner

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// killCounters are where Linux counts the processes of this container that it
// has killed because memory ran out: with control groups of version 2 and of
// version 1 (kernel documentation, cgroup-v2 and cgroup-v1/memory).
var killCounters = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// killedForMemory reads how many processes of this environment were killed
// because memory ran out. A shell that survives its program may say nothing of
// it. The count is 0 where it cannot be had, and outside a container, where it
// would be of others.
func (j *job) killedForMemory() int {
	if j.handover.Root != "/" {
		return 0
	}
	for _, path := range killCounters {
		file, err := os.Open(path)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(file, 4<<10))
		_ = file.Close()
		if count, ok := killCount(string(text)); ok && err == nil {
			return count
		}
	}
	return 0
}

// killCount reads the count out of lines of a name and a number.
func killCount(text string) (int, bool) {
	for line := range strings.Lines(text) {
		if name, number, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == "oom_kill" {
			count, err := strconv.Atoi(number)
			return count, err == nil
		}
	}
	return 0, false
}

// memoryNote tells of processes that were killed during a step.
func memoryNote(killed int) string {
	if killed == 1 {
		return "Warning: the system has killed a process of this step because memory ran out"
	}
	return fmt.Sprintf("Warning: the system has killed %d processes of this step because memory ran out", killed)
}
