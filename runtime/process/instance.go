//go:build linux || darwin

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
)

// Errors for a runner without an exit.
var (
	// errRunning means that the runner has not ended.
	errRunning = errors.New("still running")
	// errUnknown means that the system does not report whether the runner has ended, usually
	// because the agent has too many open files.
	errUnknown = errors.New("the system does not report whether the job runs")
)

// mayBeRunning reports whether an error of exitIfEnded means that the runner may still
// run.
func mayBeRunning(err error) bool { return errors.Is(err, errRunning) || errors.Is(err, errUnknown) }

// instance is the directory of a job and the supervisor of its processes.
type instance struct {
	id        string
	directory string
	// leader is zero if the agent ended before it wrote the file of the leader: the runner
	// then got no handoff and has ended.
	leader leader
}

// open returns the instance with an id. It returns ErrNoInstance for an id that this
// package has not created.
func (e *Executor) open(id string) (*instance, error) {
	if !isID(id) {
		return nil, fmt.Errorf("%q: %w", id, runtime.ErrNoInstance)
	}
	inst := &instance{id: id, directory: filepath.Join(e.directory, id)}
	if !inst.exists() {
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoInstance)
	}
	if err := readJSON(inst.directory, leaderFile, &inst.leader); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the leader of %s: %w", id, err)
	}
	return inst, nil
}

// isID reports whether an id has the form of this package. Only then is it used in a
// path.
func isID(id string) bool {
	digest, ok := strings.CutPrefix(id, jobPrefix)
	return ok && digest != "" && strings.Trim(digest, "0123456789abcdef") == ""
}

func (inst *instance) path(file string) string { return filepath.Join(inst.directory, file) }

func (inst *instance) exists() bool {
	_, err := os.Lstat(inst.directory)
	return !errors.Is(err, fs.ErrNotExist)
}

// checkSupervisor reports whether the process with the supervisor's id is the supervisor
// (running, or ended and not reaped yet), and whether the supervisor is running.
func (inst *instance) checkSupervisor() (ours, alive bool, err error) {
	p, exists, err := inspectProcess(inst.leader.PID)
	ours = exists && inst.leader.is(p)
	return ours, ours && !p.ended, err
}

// exitIfEnded returns how the runner ended. It returns errRunning if it has not ended,
// and errUnknown if that is not known.
func (inst *instance) exitIfEnded() (runtime.Exit, error) {
	if exit, ok, err := inst.readExit(); ok || err != nil {
		return exit, err
	}
	switch _, alive, err := inst.checkSupervisor(); {
	case err != nil:
		return runtime.Exit{}, fmt.Errorf("%w: %w", errUnknown, err)
	case alive:
		return runtime.Exit{}, errRunning
	}
	if exit, ok, err := inst.readExit(); ok || err != nil { // it was written between the two checks
		return exit, err
	}
	if !inst.exists() {
		return runtime.Exit{}, fmt.Errorf("%s: %w", inst.id, runtime.ErrNoInstance)
	}
	return runtime.Exit{
		Code:   runtime.CodeUnknown,
		Reason: "the exit code is unknown: its processes were killed, or the machine went down",
	}, nil
}

// neverStarted reports whether the agent ended before it started the runner, or directly
// after that, so that the runner got no handoff. After a restart of the machine this cannot
// be known, because files may be lost: then neverStarted returns false.
func (inst *instance) neverStarted(created labels) bool {
	_, exited, err := inst.readExit()
	return inst.leader == leader{} && !exited && err == nil && created.Boot != "" && created.Boot == bootStamp()
}

// readExit reads the file that the supervisor writes. A line without a newline is
// incomplete. Its errors wrap errUnknown.
func (inst *instance) readExit() (exit runtime.Exit, exists bool, err error) {
	text, err := os.ReadFile(inst.path(exitFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exit, false, nil
	case err != nil:
		return exit, false, fmt.Errorf("%w: %w", errUnknown, err)
	case !bytes.HasSuffix(text, []byte("\n")):
		return exit, false, nil
	}
	code, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return exit, false, nil
	}
	return runtime.Exit{Code: code, Reason: inst.reason(code)}, true, nil
}

// reason explains an exit code if a signal ended the runner, or if the runner could not run.
// In the second case it returns the first line of the messages. Otherwise it returns "".
func (inst *instance) reason(code int) string {
	const firstSignal, notRun, notFound = 129, 126, 127
	switch {
	case code >= firstSignal:
		if signal := unix.SignalName(syscall.Signal(code - firstSignal + 1)); signal != "" {
			return "the runner was ended by " + signal
		}
	case code == notRun, code == notFound, code == runtime.CodeUsage:
		return inst.message()
	}
	return ""
}

// message returns the first line that the runner, or the shell in its place, wrote to
// standard error.
func (inst *instance) message() string {
	const maxMessage = 300 // bytes
	file, err := os.Open(inst.path(messagesFile))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMessage))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if runtime.IsLocalLine(line) {
		return ""
	}
	return strings.ToValidUTF8(line, "?")
}

// endedAt returns when the instance ended. If that is not known, it returns the time of
// the last progress.
func (inst *instance) endedAt() time.Time {
	for _, file := range []string{exitFile, progressFile, labelsFile} {
		if info, err := os.Stat(inst.path(file)); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}
