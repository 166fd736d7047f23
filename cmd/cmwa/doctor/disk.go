package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/runtime/selfcheck"
	"github.com/cmwa-project/cmwa/schema"
)

// Limits of free disk space, in MiB. The agent itself writes almost nothing; a job writes
// its program and the Pulumi plugins, some hundred MiB each.
const (
	minDisk = 10  // below this limit, the check fails
	lowDisk = 500 // below this limit, the check warns
)

// directories returns the existing directories to which the agent or its jobs write.
func directories(c *schema.Config, environ func(string) (string, bool)) []string {
	// add adds a directory or, if the directory does not exist, its closest existing parent.
	var all []string
	add := func(directory string) {
		if directory == "" {
			return
		}
		if full, err := filepath.Abs(directory); err == nil {
			directory = full
		}
		for !exists(directory) && filepath.Dir(directory) != directory {
			directory = filepath.Dir(directory)
		}
		if !slices.Contains(all, directory) {
			all = append(all, directory)
		}
	}

	if state, err := agentid.Directory(c.StateDirectory, environ, os.Getuid()); err == nil {
		add(state)
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		switch p.DeployTarget {
		case "docker":
			add(p.SharedVolumeDirectory)
			add(p.WorkingDirectory)
		case "process":
			add(os.TempDir())
			add(p.WorkingDirectory)
		}
	}
	return all
}

func exists(directory string) bool {
	_, err := os.Stat(directory)
	return err == nil
}

// space is the free space of a file system.
type space struct {
	free  uint64 // in MiB, for this user
	files bool   // more files can be created
}

// spaceOf returns the free space of the file system of a directory.
func spaceOf(directory string) (space, error) {
	var about unix.Statfs_t
	if err := unix.Statfs(directory, &about); err != nil {
		return space{}, err
	}
	// Some file systems do not count files.
	return space{uint64(about.Bavail) * uint64(about.Bsize) >> 20, about.Files == 0 || about.Ffree > 0}, nil
}

func checkDisks(directories []string, of func(directory string) (space, error)) selfcheck.Result {
	result := selfcheck.Result{Level: selfcheck.LevelOK}
	var short, unknown []string
	for _, directory := range directories {
		found, err := of(directory)
		switch {
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("%s: %v", directory, err))
			continue
		case !found.files:
			short = append(short, directory+" has no free inodes")
		case found.free < lowDisk:
			short = append(short, fmt.Sprintf("%s has %d MiB", directory, found.free))
		}
		switch {
		case !found.files || found.free < minDisk:
			result.Level = selfcheck.LevelFailed
		case found.free < lowDisk && result.Level == selfcheck.LevelOK:
			result.Level = selfcheck.LevelWarning
		}
	}

	limits := fmt.Sprintf("warning below %d MiB, failure below %d MiB", lowDisk, minDisk)
	switch {
	case len(short) > 0:
		result.Message = fmt.Sprintf("little free disk space (%s): %s", limits, strings.Join(short, ", "))
		result.Hint = "delete files there, or configure other directories"
	case len(unknown) > 0:
		return selfcheck.Skipped("cannot determine the free disk space: %s", strings.Join(unknown, ", "))
	default:
		result.Message = fmt.Sprintf("enough free disk space (%s) in %s", limits, strings.Join(directories, ", "))
	}
	return result
}
