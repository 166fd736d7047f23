package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// execute runs the script of a step in a new shell and returns why it failed. The shell
// reads the script unchanged, from a file.
func (j *job) execute(ctx context.Context, step int, log *stepLog) error {
	shell, err := findShell(j.definition.Shell, j.env["PATH"])
	if err != nil {
		return err
	}
	directory, err := findDirectory(j.root, j.directory(), j.definition.Steps[step].WorkingDir)
	if err != nil {
		return err
	}
	script := filepath.Join(j.private, fmt.Sprintf("step-%d", step))
	if err := os.WriteFile(script, []byte(j.definition.Steps[step].Run), 0o600); err != nil {
		return fmt.Errorf("write the script: %w", err)
	}
	defer os.Remove(script)

	select {
	case <-j.idle:
		defer func() { j.idle <- struct{}{} }()
	case <-ctx.Done(): // the job was stopped just now
		return context.Cause(ctx)
	}
	filter := &outputFilter{redactor: redactor{matcher: j.matcher}}
	cmd := exec.Command(shell, script)
	cmd.Dir, cmd.Env = directory, j.env.list(directory)
	end := supervise(ctx, cmd, j.stages(log), func(piece []byte, now time.Time) { log.add(filter.take(piece, now)) })
	log.add(filter.close(time.Now()))
	if end.held != nil {
		j.drainUntilEnd(end.held)
	}
	if end.stopped {
		j.noteEnd(log, end)
	}
	return end.reason
}

// findShell returns the shell that a definition names, or else bash or sh, found on the
// PATH of steps.
func findShell(named, path string) (string, error) {
	names := []string{"bash", "sh"}
	if named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if strings.Contains(name, "/") {
			if executable(name) {
				return name, nil
			}
			continue
		}
		for _, directory := range filepath.SplitList(path) {
			if shell := filepath.Join(directory, name); filepath.IsAbs(shell) && executable(shell) {
				return shell, nil
			}
		}
	}
	return "", fmt.Errorf(
		"this environment has no shell %s (PATH is %s): use an image that has one, "+
			"or set another shell in the deployment settings",
		strings.Join(names, " or "), path)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func (j *job) directory() string { return cmp.Or(j.handoff.Directory, j.root) }

// findDirectory returns the directory of a step: the start directory of all steps, or the
// directory that the definition names. A relative path is resolved against the start
// directory, or against the root of the job if the first result does not exist. An absolute
// path is resolved against the root, or used unchanged if the first result does not exist.
func findDirectory(root, start, named string) (string, error) {
	candidates := []string{filepath.Join(start, named), filepath.Join(root, named)}
	if filepath.IsAbs(named) {
		candidates = []string{filepath.Join(root, named), filepath.Clean(named)}
	}
	for _, directory := range candidates {
		if info, err := os.Stat(directory); err == nil && info.IsDir() {
			return directory, nil
		}
	}
	return "", fmt.Errorf("the working directory %s does not exist", candidates[len(candidates)-1])
}

// reasonOf returns why the end of a program is a failure; nil if it is not.
func reasonOf(err error) error {
	state, ok := waitStatus(err)
	if !ok {
		return err
	}
	if state.Signaled() {
		signal := state.Signal()
		return fmt.Errorf("the script was killed by signal %d (%s)%s", int(signal), signal, signalHint(signal))
	}
	code := state.ExitStatus()
	return fmt.Errorf("the script ended with exit code %d%s", code, signalHint(syscall.Signal(code-128)))
}

func waitStatus(err error) (status syscall.WaitStatus, ok bool) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return 0, false
	}
	status, ok = exit.Sys().(syscall.WaitStatus)
	return status, ok
}

// signalHint returns a likely cause of a signal that scripts do not send to themselves.
func signalHint(signal syscall.Signal) string {
	if signal == syscall.SIGKILL {
		return ", which often means that memory ran out"
	}
	return ""
}
