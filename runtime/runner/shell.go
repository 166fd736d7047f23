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

// execute runs a step's script in a shell of its own and returns why it failed.
// The script reaches the shell as a file, unchanged.
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

	cook := &cooker{redactor: redactor{matcher: j.matcher}}
	held, reason := supervise(ctx, command{
		path: shell, args: []string{script}, directory: directory, environ: j.env.list(directory),
		grace: j.grace(), hurry: j.options.Hurry,
	}, func(piece []byte, now time.Time) { log.add(cook.take(piece, now)) })
	log.add(cook.close(time.Now()))
	if held != nil {
		j.keep(held)
	}
	return reason
}

// findShell finds the shell that a definition names, or else bash or sh, by the
// PATH that steps have.
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
		for _, folder := range filepath.SplitList(path) {
			if shell := filepath.Join(folder, name); filepath.IsAbs(shell) && executable(shell) {
				return shell, nil
			}
		}
	}
	return "", fmt.Errorf("this environment has no shell %s (PATH is %s): use an image that has one, or set another shell in the deployment settings",
		strings.Join(names, " or "), path)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// directory returns the folder in which steps start.
func (j *job) directory() string { return cmp.Or(j.handover.Directory, j.root) }

// findDirectory returns where a step works: the folder in which steps start, or the
// one that the definition names. A relative name counts from there or from the job's
// root, an absolute one from the root or as it is.
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

// reasonOf says why a program's end is a failure, or nil.
func reasonOf(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if state, ok := exit.Sys().(syscall.WaitStatus); ok && state.Signaled() {
		signal := state.Signal()
		return fmt.Errorf("the script was killed by signal %d (%s)%s", int(signal), signal, hint(signal))
	}
	code := exit.ExitCode()
	return fmt.Errorf("the script ended with exit code %d%s", code, hint(syscall.Signal(code-128)))
}

// hint says what a signal often means that no script sends itself.
func hint(signal syscall.Signal) string {
	if signal == syscall.SIGKILL {
		return ", which is what happens when memory runs out"
	}
	return ""
}
