package input

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
	"github.com/cmwa-project/cmwa/schema/printable"
)

// Stdin is the name of standard input in problems.
const Stdin = "<stdin>"

// Reader reads the files of a command line.
type Reader struct {
	Environ     map[string]string
	Stdin       io.Reader
	Directories bool // walk directories; otherwise a directory is a problem
}

// Files are the files that a command line names, in the same order.
type Files struct {
	Sources []schema.Source
	Named   []int                     // for each source, the index of the name that the command line gives for it
	Unread  map[int]position.Problems // problems of sources that cannot be read, by index in Sources
	Skipped []string                  // files that were in a directory and are not for the agent
}

// Read reads the files. Without names it reads the file that cmwa run would read. The
// name - is standard input. The error is a [cli.UsageError], or [context.Cause] of ctx
// if ctx has ended.
func (r Reader) Read(ctx context.Context, names []string) (Files, error) {
	executable, _ := os.Executable()
	if len(names) == 0 {
		source, err := r.usual(executable)
		if err != nil {
			return Files{}, cli.Usage(err)
		}
		return Files{Sources: []schema.Source{source}, Named: []int{0}}, nil
	}

	if first := slices.Index(names, "-"); first >= 0 && slices.Contains(names[first+1:], "-") {
		return Files{}, cli.Usagef("standard input can be read once only: name - once")
	}

	files := Files{Unread: map[int]position.Problems{}}
	for i, name := range names {
		source := schema.Source{Path: name, Environ: r.Environ, Executable: executable}
		if name == "-" {
			source.Path = Stdin
		}
		var err error
		source.Content, source.Mode, err = r.read(ctx, name)
		if errors.Is(err, errDirectory) && r.Directories {
			err = r.walk(ctx, name, source, &files)
			for len(files.Named) < len(files.Sources) {
				files.Named = append(files.Named, i)
			}
			if err == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return Files{}, context.Cause(ctx)
		}
		if err != nil {
			files.Unread[len(files.Sources)] = position.Problems{unreadable(name, source.Path, err)}
		}
		files.Sources, files.Named = append(files.Sources, source), append(files.Named, i)
	}
	return files, nil
}

func (r Reader) usual(executable string) (schema.Source, error) {
	home, _ := os.UserHomeDir()
	source, err := schema.Find(schema.SearchPaths{Home: home, Executable: executable, Environ: r.Environ})
	if err != nil {
		return source, err
	}
	for name, value := range r.Environ {
		if strings.HasPrefix(name, "PULUMI_AGENT_") && strings.TrimSpace(value) != "" {
			return source, nil
		}
	}
	if source.Path == "" {
		return source, fmt.Errorf("no %s in %s: name a file, or - for standard input",
			schema.FileName, strings.Join(source.Searched, ", "))
	}
	return source, nil
}

var errDirectory = errors.New("it is a directory")

// read reads one file, or standard input if the name is -. It reads at most one byte
// more than position.MaxFile. It also reads pipes, because the shell passes a pipe for
// <(command). The writer may never close a pipe, so read also returns when ctx ends.
func (r Reader) read(ctx context.Context, name string) ([]byte, fs.FileMode, error) {
	type result struct {
		content []byte
		mode    fs.FileMode
	}
	got, err := cli.Await(ctx, func() (got result, err error) {
		in := r.Stdin
		if name != "-" {
			info, err := os.Stat(name)
			if err != nil {
				return got, err
			}
			if info.IsDir() {
				return got, errDirectory
			}
			if info.Mode().IsRegular() {
				got.mode = info.Mode().Perm()
			}
			file, err := os.Open(name)
			if err != nil {
				return got, err
			}
			defer file.Close()
			in = file
		}

		got.content, err = io.ReadAll(io.LimitReader(in, position.MaxFile+1))
		return got, err
	})
	return got.content, got.mode, err
}

// unreadable returns the problem of a file that cannot be read. For any other error of
// a system call, the message contains only the text of the errno, without file names.
func unreadable(name, path string, err error) position.Problem {
	p := position.Problem{Rule: position.RuleUnreadable, File: path, Message: "the file cannot be read"}
	var number syscall.Errno
	var directory directoryError
	switch {
	case errors.As(err, &directory):
		p.Message, p.Hint = directory.Error(), "name the files in it"
	case errors.Is(err, errDirectory):
		p.Message = "this is a directory"
		p.Hint = "name the files in it, such as " + printable.QuoteName(filepath.Join(name, "*.yaml"))
	case errors.Is(err, fs.ErrNotExist):
		p.Message = "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		p.Message, p.Hint = "this user may not read the file", "run this as its owner, or let this user read it"
	case errors.As(err, &number):
		p.Message += ": " + number.Error()
	}
	return p
}
