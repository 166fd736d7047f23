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

// unknownCode is the exit code of a runner whose code is lost.
const unknownCode = -1

// errRunning says that there is no exit yet, errUnclear that the system does not
// tell: most often the agent has too many files open. Neither is an end.
var (
	errRunning = errors.New("still running")
	errUnclear = errors.New("the system does not say whether the job runs")
)

// unended reports whether an error of ended says that it may go on.
func unended(err error) bool { return errors.Is(err, errRunning) || errors.Is(err, errUnclear) }

// environment is one job's folder and who leads its session.
type environment struct {
	id     string
	folder string
	leader leader // zero when the agent died before it had written it down: then the runner was handed nothing and has ended
}

// open finds an environment. Any id that is not one of ours names nothing.
func (e *Executor) open(id string) (*environment, error) {
	if !valid(id) {
		return nil, fmt.Errorf("%q: %w", id, runtime.ErrNoEnvironment)
	}
	v := &environment{id: id, folder: filepath.Join(e.folder, id)}
	if !v.there() {
		return nil, fmt.Errorf("%s: %w", id, runtime.ErrNoEnvironment)
	}
	if err := readJSON(v.folder, leaderFile, &v.leader); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read who leads %s: %w", id, err)
	}
	return v, nil
}

// valid reports whether an id may be one of ours: it is about to become a path.
func valid(id string) bool {
	digest, ok := strings.CutPrefix(id, jobPrefix)
	return ok && digest != "" && strings.Trim(digest, "0123456789abcdef") == ""
}

func (v *environment) path(file string) string { return filepath.Join(v.folder, file) }

func (v *environment) there() bool {
	_, err := os.Lstat(v.folder)
	return !errors.Is(err, fs.ErrNotExist)
}

// ours reports whether the supervisor's process id still stands for the
// supervisor, ended or not, and whether it is alive.
func (v *environment) ours() (ours, alive bool, err error) {
	p, there, err := look(v.leader.PID)
	ours = there && v.leader.is(p)
	return ours, ours && !p.ended, err
}

// ended returns how the runner ended; errRunning if it has not, errUnclear if
// that cannot be told.
func (v *environment) ended() (runtime.Exit, error) {
	if exit, ok, err := v.exit(); ok || err != nil {
		return exit, err
	}
	switch _, alive, err := v.ours(); {
	case err != nil:
		return runtime.Exit{}, fmt.Errorf("%w: %w", errUnclear, err)
	case alive:
		return runtime.Exit{}, errRunning
	}
	if exit, ok, err := v.exit(); ok || err != nil { // it came between the two looks
		return exit, err
	}
	if !v.there() {
		return runtime.Exit{}, fmt.Errorf("%s: %w", v.id, runtime.ErrNoEnvironment)
	}
	return runtime.Exit{Code: unknownCode, Reason: "its processes are gone and have left no exit code: they were killed, or the machine went down"}, nil
}

// exit reads what the supervisor has written down. Without its newline the line
// is not finished. An error is errUnclear.
func (v *environment) exit() (exit runtime.Exit, there bool, err error) {
	text, err := os.ReadFile(v.path(exitFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exit, false, nil
	case err != nil:
		return exit, false, fmt.Errorf("%w: %w", errUnclear, err)
	case !bytes.HasSuffix(text, []byte("\n")):
		return exit, false, nil
	}
	code, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return exit, false, nil
	}
	return runtime.Exit{Code: code, Reason: v.reason(code)}, true, nil
}

// reason explains the codes that a shell gives to an end that was not the
// runner's choice. Of a runner that did not start it has the first words.
func (v *environment) reason(code int) string {
	const firstSignal, notRun, notFound = 129, 126, 127
	switch {
	case code >= firstSignal:
		signal := unix.SignalName(syscall.Signal(code - firstSignal + 1))
		if signal == "" {
			return ""
		}
		return "the runner was ended by " + signal
	case code == notRun, code == notFound, code == runtime.CodeUsage:
		return v.message()
	default:
		return ""
	}
}

// message is the first line that the runner, or the shell in its place, wrote
// to its standard error.
func (v *environment) message() string {
	const enough = 300
	file, err := os.Open(v.path(messagesFile))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, enough))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return strings.ToValidUTF8(line, "?")
}

// endedAt is when the environment ended, or if that is not known, when it last
// gave a sign of life.
func (v *environment) endedAt() time.Time {
	for _, file := range []string{exitFile, progressFile, labelsFile} {
		if info, err := os.Stat(v.path(file)); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}
