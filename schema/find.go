package schema

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// The name of a configuration file, and that of the deployment agent's time.
const (
	FileName    = "pulumi-workflow-agent.yaml"
	OldFileName = "pulumi-deployment-agent.yaml"
)

// Source is everything that a load depends on. It is a value; Load does not
// change it.
type Source struct {
	Path       string            // of the file, as it stands in messages; empty is no file
	Content    []byte            // of the file
	Environ    map[string]string // as it was when the process started
	Executable string            // path of the program; empty is unknown
	Searched   []string          // directories without a file, for the message that says so
	Before     []string          // files that are not there, and would be read instead of Path
	Mode       fs.FileMode       // permissions of the file; 0 is unknown
	FileID     FileID            // of the file that was read, behind all links

	// Elsewhere says that the agent runs on another machine: a token or a file
	// that is not here is no error.
	Elsewhere bool

	// Release is what the program that reads the source can carry out.
	Release Release

	// TerminationGrace is how long the agent's own Pod may take to end; 0 is
	// unknown.
	TerminationGrace time.Duration

	// ReadFile reads a file that the configuration names. Nil reads regular
	// files of at most position.MaxFile bytes from disk.
	ReadFile func(name string) ([]byte, error)

	vetted bool // by [Vet], and not read by an agent
}

// FileID tells files apart that have the same path one after the other: a rename
// onto the path, or another target of a link, makes it another one, and a write in
// place does not. A number may be used again once its file is gone. The zero value
// is unknown.
type FileID struct {
	Device, Inode uint64
}

// fileID returns the id of an open or named file.
func fileID(info fs.FileInfo) FileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}
	}
	return FileID{Device: uint64(stat.Dev), Inode: stat.Ino} // Dev is signed on macOS
}

// Release is what a release of the agent can carry out. To demand more is an error,
// which [Strict] makes a warning. A nil list stands for everything.
type Release struct {
	Targets []string // values of deploy_target
	Kinds   []string // of enabled_workflow_types; a pool must have one of them

	// StopGrace is the time between TERM and KILL of a job that is stopped. With 0,
	// shutdown_timeout is not compared with it.
	StopGrace time.Duration
}

func (s Source) read(name string) ([]byte, fs.FileMode, error) {
	if s.ReadFile != nil {
		content, err := s.ReadFile(name)
		return content, 0, err
	}
	content, info, err := readRegular(name)
	if err != nil {
		return nil, 0, err
	}
	return content, info.Mode().Perm(), nil
}

// Places is where [Find] looks.
type Places struct {
	Config           string            // the file that the command line names; empty is none
	WorkingDirectory string            // of the process; empty is "."
	Home             string            // empty is none
	Executable       string            // path of the program; empty is unknown
	Environ          map[string]string // of the process
}

// Find reads the configuration file. A file that the command line or
// PULUMI_AGENT_CONFIG names must be there. Otherwise the first one counts of the
// current directory, the home directory, /etc and the directory of the
// executable; files are not merged. The present name is looked for in all of them
// before the old one is. No file at all is no error, as the environment may say
// enough; a file that is there and cannot be read is one.
func Find(places Places) (Source, error) {
	source := Source{Environ: places.Environ, Executable: places.Executable}
	if named, by := places.named(); named != "" {
		content, info, err := readRegular(named)
		if err != nil {
			return Source{}, fmt.Errorf("read the configuration that %s names: %w: make it readable, or name another",
				by, err)
		}
		source.Path, source.Content, source.Mode, source.FileID = named, content, info.Mode().Perm(), fileID(info)
		return source, nil
	}
	source.Searched = places.directories()
	for _, name := range []string{FileName, OldFileName} {
		for _, directory := range source.Searched {
			path := filepath.Join(directory, name)
			content, info, err := readRegular(path)
			if missing(err) {
				source.Before = append(source.Before, path)
				continue
			}
			if err != nil {
				return Source{}, fmt.Errorf("read the configuration: %w: make it readable, or name another with --config", err)
			}
			source.Path, source.Content, source.Mode, source.FileID = path, content, info.Mode().Perm(), fileID(info)
			source.Searched = nil
			return source, nil
		}
	}
	return source, nil
}

// Named reports whether a file is named outright, so that no folder is looked in.
func (p Places) Named() bool {
	path, _ := p.named()
	return path != ""
}

// named returns the file that is named outright, and what names it.
func (p Places) named() (path, by string) {
	if p.Config != "" {
		return p.Config, "--config"
	}
	return strings.TrimSpace(p.Environ[prefix+"CONFIG"]), prefix + "CONFIG"
}

// directories returns the folders to look in, each once, in order.
func (p Places) directories() []string {
	directories := []string{p.WorkingDirectory, p.Home, "/etc", directoryOf(p.Executable)}
	if p.WorkingDirectory == "" {
		directories[0] = "."
	}
	var unique []string
	for _, directory := range directories {
		if directory != "" && !slices.Contains(unique, directory) {
			unique = append(unique, directory)
		}
	}
	return unique
}

// directoryOf returns the folder of a file, and nothing for no file.
func directoryOf(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}

// readRegular reads a regular file, and returns what the file is. It stops one
// byte after [position.MaxFile], which Load then refuses, so that no file fills the memory.
func readRegular(path string) ([]byte, fs.FileInfo, error) {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, position.MaxFile+1))
	return content, info, err
}

// missing reports whether an error says that there is no such file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
