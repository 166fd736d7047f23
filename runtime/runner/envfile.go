package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxEnvFile limits what is read of PULUMI_ENV, in bytes: programs cannot be
// given more anyway.
const maxEnvFile = 1 << 20

// envFile is the file by which steps set variables for the steps after them:
// lines of NAME=VALUE, which Pulumi documents as PULUMI_ENV.
type envFile struct {
	path string
	seen string // its content when it was last loaded
}

// newEnvFile finds a place for the file: the one that the job names, the
// documented one in the job's root, or one of our own.
func newEnvFile(named, root, private string) (*envFile, error) {
	var errs []error
	for _, path := range []string{named, filepath.Join(root, "PULUMI_ENV"), filepath.Join(private, "PULUMI_ENV")} {
		if path == "" {
			continue
		}
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return &envFile{path: path}, file.Close()
	}
	return nil, fmt.Errorf("make a file for PULUMI_ENV: %w", errors.Join(errs...))
}

// load reads the file if a step has changed it, sets its variables in env, and
// returns what is to be said about it.
func (f *envFile) load(env environ) (says []string) {
	text, err := f.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return []string{fmt.Sprintf("Warning: PULUMI_ENV is not read: %v", err)}
	case text == f.seen || strings.TrimSpace(text) == "":
		return nil
	}
	f.seen = text
	variables, problems := parseEnvFile(text)
	says = append([]string{"Loading PULUMI_ENV from " + f.path}, problems...)
	for _, v := range variables {
		if v.name != rootVariable && v.name != envFileVariable {
			env[v.name] = v.value
		}
	}
	return says
}

// read reads a file that a step may have replaced by anything.
func (f *envFile) read() (string, error) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file any more", f.path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxEnvFile {
		return "", fmt.Errorf("%s is larger than %d MiB", f.path, maxEnvFile>>20)
	}
	return string(text), nil
}

// variable is one entry of the file.
type variable struct{ name, value string }

// maxEnvProblems limits what is said about one file.
const maxEnvProblems = 10

// parseEnvFile reads lines of NAME=VALUE. A value is everything behind the first
// equals sign, as it stands. Empty lines and lines that start with # are
// nothing. Problems name lines by number, since what stands there may be secret.
func parseEnvFile(text string) (variables []variable, problems []string) {
	number, bad := 0, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		reason := unfit(name, value)
		if !found || strings.ContainsAny(name, " \t\r\v\f\"'`$") {
			reason = "it is not of the form NAME=VALUE"
		}
		if reason == "" {
			variables = append(variables, variable{name, value})
			continue
		}
		if bad++; bad <= maxEnvProblems {
			problems = append(problems, fmt.Sprintf("Warning: line %d of PULUMI_ENV is skipped: %s", number, reason))
		}
	}
	if bad > maxEnvProblems {
		problems = append(problems, fmt.Sprintf("Warning: %d more lines of PULUMI_ENV are skipped", bad-maxEnvProblems))
	}
	return variables, problems
}
