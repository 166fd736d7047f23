package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/schema"
	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/report"
)

// sources reads the files. Unread has the problems of those that cannot be read, by
// index. Without files it reads the one that cmwa run would.
func (s streams) sources(
	ctx context.Context, files []string,
) (sources []schema.Source, unread map[int]position.Problems, err error) {
	environ := readEnvironment(s.environ)
	executable, _ := os.Executable()
	if len(files) == 0 {
		source, err := s.usual(environ, executable)
		if err != nil {
			return nil, nil, cli.Usage(err)
		}
		return []schema.Source{source}, nil, nil
	}
	if first := slices.Index(files, "-"); first >= 0 && slices.Contains(files[first+1:], "-") {
		return nil, nil, cli.Usagef("standard input can be read once only: name - once")
	}
	unread = map[int]position.Problems{}
	for i, name := range files {
		source := schema.Source{Path: name, Environ: environ, Executable: executable}
		if name == "-" {
			source.Path = "<stdin>"
		}
		if source.Content, source.Mode, err = s.read(ctx, name); err != nil {
			if ctx.Err() != nil {
				return nil, nil, cli.ExitError(exitUnread)
			}
			message, hint := unreadable(name, err)
			unread[i] = position.Problems{{Rule: position.RuleUnreadable, File: source.Path, Message: message, Hint: hint}}
		}
		sources = append(sources, source)
	}
	return sources, unread, nil
}

// usual returns the file that cmwa run would read.
func (s streams) usual(environ environment, executable string) (schema.Source, error) {
	home, _ := os.UserHomeDir()
	source, err := schema.Find(schema.Places{Home: home, Executable: executable, Environ: environ})
	if err != nil {
		return source, err
	}
	isOurs := func(entry string) bool { return strings.HasPrefix(entry, "PULUMI_AGENT_") }
	if source.Path == "" && !slices.ContainsFunc(s.environ, isOurs) {
		return source, fmt.Errorf("there is no %s in %s: name a file", schema.FileName, strings.Join(source.Searched, ", "))
	}
	return source, nil
}

var errDirectory = errors.New("it is a directory")

// read reads one file, or standard input if the name is -. It reads at most one byte
// more than a file may have. Pipes are read too, for the shell's <(command); as a pipe
// may never end, read returns when ctx ends.
func (s streams) read(ctx context.Context, name string) ([]byte, fs.FileMode, error) {
	type result struct {
		content []byte
		mode    fs.FileMode
	}
	r, err := cli.Await(ctx, func() (r result, err error) {
		in := s.stdin
		if name != "-" {
			info, err := os.Stat(name)
			if err != nil {
				return r, err
			}
			if info.IsDir() {
				return r, errDirectory
			}
			if info.Mode().IsRegular() {
				r.mode = info.Mode().Perm()
			}
			file, err := os.Open(name)
			if err != nil {
				return r, err
			}
			defer file.Close()
			in = file
		}
		r.content, err = io.ReadAll(io.LimitReader(in, position.MaxFile+1))
		return r, err
	})
	return r.content, r.mode, err
}

// unreadable says why a file cannot be read. Of what the system says only the
// number's own words are taken.
func unreadable(name string, err error) (message, hint string) {
	var number syscall.Errno
	switch {
	case errors.Is(err, errDirectory):
		return "this is a directory", "name the files in it, such as " + report.QuoteName(filepath.Join(name, "*.yaml"))
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file", ""
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read the file", "begin again as its owner, or let this user read it"
	case errors.As(err, &number):
		return "the file cannot be read: " + number.Error(), ""
	default:
		return "the file cannot be read", ""
	}
}
