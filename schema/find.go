package schema

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/schema/position"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// The name of a configuration file, and its name in releases of the deployment agent.
const (
	FileName    = "pulumi-workflow-agent.yaml"
	OldFileName = "pulumi-deployment-agent.yaml"
)

// Source is everything that a load depends on. Load does not change it.
type Source struct {
	Path       string            // path of the file, as messages show it; empty if there is no file
	Content    []byte            // content of the file
	Environ    map[string]string // environment of the process when it started
	Unknown    []string          // variables that are set, to values that are not known here
	Executable string            // path of the program; empty if unknown
	Searched   []string          // directories without a file, for the message about a missing token
	Before     []string          // missing files that would be read instead of Path
	Mode       fs.FileMode       // permissions of the file; 0 if unknown, or if they cannot be changed
	FileID     FileID            // identifies the file that was read, after all links

	// Elsewhere means that the agent runs on another machine: a file that is missing here, or
	// a missing token at the top level, is not an error, and relative paths are not resolved.
	Elsewhere bool

	// Strict has the effect of the key strict: an unknown key is an error, and so is a
	// file without settings.
	Strict bool

	// Release has the limits of the program that reads the source.
	Release Release

	// PinnedServiceURL is the only service_url that the source may have. If it is empty, the source
	// may have any.
	PinnedServiceURL string

	// TerminationGrace is the grace period of the agent's own Pod; 0 if unknown.
	TerminationGrace time.Duration

	// Image is the image of the agent's own container; empty if unknown.
	Image string

	// Objects are those of the other files in the directory of a manifest. Variables may come from
	// a ConfigMap among them. Nil means that there are no other files.
	Objects *Objects

	// ReadFile reads a file that the configuration names. Nil reads regular
	// files of at most position.MaxFile bytes from disk.
	ReadFile func(name string) ([]byte, error)

	vetted bool // checked by [Vet] or [VetLocal], not loaded by an agent
	local  bool // checked by [VetLocal]: the files that the configuration names must be on this machine
}

// FileID identifies the file at a path. A rename onto the path or another target of a link
// changes the id; a write in place does not. The system may give the numbers of a deleted
// file to a new file. The zero value means unknown.
type FileID struct {
	Device, Inode uint64
}

func fileID(info fs.FileInfo) FileID {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}
	}
	return FileID{Device: uint64(stat.Dev), Inode: stat.Ino} // Dev is signed on macOS
}

// Release lists the values that a release of the agent supports. Another value is an
// error, which the function [Strict] turns into a warning. A nil list allows every value.
type Release struct {
	Targets []string // of deploy_target
	Kinds   []string // of enabled_workflow_types; a pool must have one of them

	// StopTime is how long an agent may need to end after shutdown_timeout. With 0, the grace period
	// of its Pod is not compared with it.
	StopTime time.Duration
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
	return content, permissions(name, info), nil
}

// permissions returns the permissions of a file, and 0 if they cannot be changed here, because its
// file system is mounted read-only. So is a volume of Kubernetes with a Secret, whose files have
// mode 0644 by default.
func permissions(path string, info fs.FileInfo) fs.FileMode {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err == nil && stat.Flags&readOnly != 0 {
		return 0
	}
	return info.Mode().Perm()
}

// readOnly is ST_RDONLY of Linux, and MNT_RDONLY of macOS.
const readOnly = 1

// SearchPaths are the locations in which [Find] searches.
type SearchPaths struct {
	Config           string            // the file that the command line names; may be empty
	WorkingDirectory string            // of the process; empty means "."
	Home             string            // may be empty
	Root             string            // that contains etc; empty means "/"
	Executable       string            // path of the program; empty if unknown
	Environ          map[string]string // of the process
}

// Find reads the configuration file. A file that the command line or
// PULUMI_AGENT_CONFIG names must exist. Otherwise Find uses the first file in the working
// directory, the home directory, /etc/cmwa, /etc and the directory of the executable; files are
// not merged. It searches all directories for the current name before it searches for the old
// name. It is not an error if no directory has a file, because the environment may contain
// the whole configuration. It is an error if a file exists and cannot be read.
func Find(paths SearchPaths) (Source, error) {
	source := Source{Environ: paths.Environ, Executable: paths.Executable}
	if named, by := paths.named(); named != "" {
		if err := source.readFrom(named); err != nil {
			return Source{}, fmt.Errorf("read the configuration that %s names: %w: make it readable, or name another",
				by, err)
		}
		return source, nil
	}

	source.Searched = paths.directories()
	for _, name := range []string{FileName, OldFileName} {
		for _, directory := range source.Searched {
			path := filepath.Join(directory, name)
			err := source.readFrom(path)
			switch {
			case err == nil:
				source.Searched = nil
				return source, nil
			case missing(err):
				source.Before = append(source.Before, path)
			default:
				return Source{}, fmt.Errorf(
					"read the configuration: %w: make it readable, or name another with --config", err)
			}
		}
	}
	return source, nil
}

// readFrom reads the configuration file of the source.
func (s *Source) readFrom(path string) error {
	content, info, err := readRegular(path)
	if err == nil {
		s.Path, s.Content, s.Mode, s.FileID = path, content, permissions(path, info), fileID(info)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w for user %d", err, os.Geteuid())
	}
	return err
}

// Named reports whether a file is named explicitly, so that no directory is searched.
func (s SearchPaths) Named() bool {
	path, _ := s.named()
	return path != ""
}

// named returns the file that is named explicitly, and the flag or variable with its name.
func (s SearchPaths) named() (path, by string) {
	if s.Config != "" {
		return s.Config, "--config"
	}
	return strings.TrimSpace(s.Environ[prefix+"CONFIG"]), prefix + "CONFIG"
}

// directories returns the directories to search, each once, in order.
func (s SearchPaths) directories() []string {
	var unique []string
	for _, directory := range []string{
		cmp.Or(s.WorkingDirectory, "."), s.Home,
		filepath.Join("/", s.Root, "etc/cmwa"), filepath.Join("/", s.Root, "etc"), directoryOf(s.Executable),
	} {
		if directory != "" && !slices.Contains(unique, directory) {
			unique = append(unique, directory)
		}
	}
	return unique
}

// directoryOf returns the directory of a file, and "" for an empty path.
func directoryOf(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}

// readRegular reads a regular file, and returns its attributes. It reads at most one byte
// more than [position.MaxFile], which Load then rejects, so that a large file cannot use up
// the memory.
func readRegular(path string) ([]byte, fs.FileInfo, error) {
	file, info, err := secret.OpenRegular(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, position.MaxFile+1))
	return content, info, err
}

// missing reports whether an error means that there is no such file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
