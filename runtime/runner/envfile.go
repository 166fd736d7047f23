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

// maxEnvFile is the largest size of PULUMI_ENV in bytes. Programs cannot receive a larger
// environment.
const maxEnvFile = 1 << 20

// envFile is the file through which steps set variables for later steps: lines of
// NAME=VALUE. Pulumi documents it as PULUMI_ENV.
type envFile struct {
	path   string
	loaded string // content at the last load
}

// newEnvFile creates the file at the first of these paths that is writable: the path that
// the job names, the documented path in the root of the job, and a path in the private
// directory of the runner.
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
	return nil, fmt.Errorf("create a file for PULUMI_ENV: %w", errors.Join(errs...))
}

// load reads the file. If its content is not blank and differs from that at the last load, it
// sets the variables in env, except rootVariable and envFileVariable. It returns messages for
// the log.
func (f *envFile) load(env environ) (messages []string) {
	text, err := f.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return []string{fmt.Sprintf("Warning: cannot read PULUMI_ENV: %v", err)}
	case text == f.loaded || strings.TrimSpace(text) == "":
		return nil
	}
	f.loaded = text
	variables, problems := parseEnvFile(text)
	messages = append([]string{"Loading PULUMI_ENV from " + f.path}, problems...)
	for _, v := range variables {
		if v.name != rootVariable && v.name != envFileVariable {
			env[v.name] = v.value
		}
	}
	return messages
}

// read returns the content of the file. A step may have replaced the file by a directory, a
// pipe or a device.
func (f *envFile) read() (string, error) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no longer a regular file", f.path)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("%s is larger than %d MiB", f.path, maxEnvFile>>20)
	}
	return string(text), err
}

// variable is one entry of the file.
type variable struct{ name, value string }

const maxEnvProblems = 10 // that are logged for one file

// parseEnvFile parses lines of NAME=VALUE, which may end in CRLF. The value is the text after
// the first equals sign, unchanged. Blank lines and comments are skipped: a comment starts
// with #, also after white space. Problems contain line numbers and not the lines, which may
// be secret.
func parseEnvFile(text string) (variables []variable, problems []string) {
	number, bad := 0, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		reason := variableProblem(name, value)
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
