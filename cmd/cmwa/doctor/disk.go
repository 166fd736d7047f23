package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/agentid"
	"github.com/cmwa-project/cmwa/schema"
)

// Limits of free disk space, in MiB. The agent itself writes almost nothing; a job writes
// its program and the Pulumi plugins, some hundred MiB each.
const (
	minDisk = 10  // below this limit, the check fails
	lowDisk = 500 // below this limit, the check warns
)

// folders returns the existing folders to which the agent or its jobs write.
func folders(c *schema.Config, environ func(string) (string, bool)) []string {
	// add adds a folder or, if the folder does not exist, its closest existing parent.
	var all []string
	add := func(folder string) {
		if folder == "" {
			return
		}
		if full, err := filepath.Abs(folder); err == nil {
			folder = full
		}
		for !exists(folder) && filepath.Dir(folder) != folder {
			folder = filepath.Dir(folder)
		}
		if !slices.Contains(all, folder) {
			all = append(all, folder)
		}
	}

	// Collect the folders of the agent and of its pools.
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

func exists(folder string) bool {
	_, err := os.Stat(folder)
	return err == nil
}

// space is the free space of a file system.
type space struct {
	free  uint64 // in MiB, for this user
	files bool   // more files can be created
}

// spaceOf returns the free space of the file system of a folder.
func spaceOf(folder string) (space, error) {
	var about unix.Statfs_t
	if err := unix.Statfs(folder, &about); err != nil {
		return space{}, err
	}
	// Some file systems do not count files.
	return space{uint64(about.Bavail) * uint64(about.Bsize) >> 20, about.Files == 0 || about.Ffree > 0}, nil
}

// checkDisks checks the free space of the folders.
func checkDisks(folders []string, of func(folder string) (space, error)) runtime.CheckResult {
	result := runtime.CheckResult{Level: runtime.LevelOK}
	var short, unknown []string
	for _, folder := range folders {
		found, err := of(folder)
		switch {
		case err != nil:
			unknown = append(unknown, fmt.Sprintf("%s: %v", folder, err))
			continue
		case !found.files:
			short = append(short, folder+" has no free inodes")
		case found.free < lowDisk:
			short = append(short, fmt.Sprintf("%s has %d MiB", folder, found.free))
		}
		switch {
		case !found.files || found.free < minDisk:
			result.Level = runtime.LevelFailed
		case found.free < lowDisk && result.Level == runtime.LevelOK:
			result.Level = runtime.LevelWarning
		}
	}

	limits := fmt.Sprintf("warning below %d MiB, failure below %d MiB", lowDisk, minDisk)
	switch {
	case len(short) > 0:
		result.Message = fmt.Sprintf("little free disk space (%s): %s", limits, strings.Join(short, ", "))
		result.Cure = "delete files there, or configure other folders"
	case len(unknown) > 0:
		return runtime.CheckSkipped("cannot determine the free disk space: %s", strings.Join(unknown, ", "))
	default:
		result.Message = fmt.Sprintf("enough free disk space (%s) in %s", limits, strings.Join(folders, ", "))
	}
	return result
}
