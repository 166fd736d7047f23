package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// newProcessGroup makes a program the leader of a new process group, and lets the kernel
// kill it when the runner ends.
func newProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Hide protects the memory, the environment and the open files of this process from other
// processes of the same user without CAP_SYS_PTRACE (PR_SET_DUMPABLE, prctl(2)), so that
// the steps of a job cannot read its tokens. It does not protect the tokens from the image of the job,
// or from steps of root, which can change what the runner uses: the proxy variables, the certificates
// (SSL_CERT_FILE, the system's store) and /etc/hosts.
func Hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// listProcesses returns all processes. It fails if /proc is that of another PID namespace.
func listProcesses() ([]process, error) {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("/proc does not show this process: %w", errors.Join(err, errors.ErrUnsupported))
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		if p, ok := parseStat(pid, string(text)); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseStat parses a line of /proc/PID/stat (proc_pid_stat(5)). The name of the program is
// in parentheses and may contain any character.
func parseStat(pid int, line string) (process, bool) {
	const state, parent, group, start = 0, 1, 2, 19 // indexes of fields after the name
	opening, closing := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if opening < 0 || closing < opening {
		return process{}, false
	}
	fields := strings.Fields(line[closing+1:])
	if len(fields) <= start {
		return process{}, false
	}
	p := process{
		processID: processID{pid: pid, began: fields[start]}, name: line[opening+1 : closing],
		ended: fields[state] == "Z" || fields[state] == "X",
	}
	var err1, err2 error
	p.parent, err1 = strconv.Atoi(fields[parent])
	p.group, err2 = strconv.Atoi(fields[group])
	return p, err1 == nil && err2 == nil
}

// handlesInterrupt reports whether a process handles SIGINT (SigCgt in proc_pid_status(5)).
func handlesInterrupt(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && caught&(1<<(syscall.SIGINT-1)) != 0
		}
	}
	return false
}

// programOf returns the name of a process's program file; empty if unknown.
func programOf(pid int) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return filepath.Base(path)
}
