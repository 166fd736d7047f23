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

// Limits of free disk, in MiB. The agent itself writes next to nothing; a job writes
// its program and the plug-ins of pulumi, some hundred MiB each.
const (
	leastDisk  = 10  // with less, a check fails
	scarceDisk = 500 // with less, it warns
)

// folders returns the folders that are written to, or hold programs, and exist.
func folders(c *schema.Config, environ func(string) (string, bool)) []string {
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

// space is what is free of a file system.
type space struct {
	free  uint64 // in MiB, for this user
	files bool   // it can hold more files
}

// spaceOf returns what is free where a folder is.
func spaceOf(folder string) (space, error) {
	var about unix.Statfs_t
	if err := unix.Statfs(folder, &about); err != nil {
		return space{}, err
	}
	// Some file systems do not count files.
	return space{uint64(about.Bavail) * uint64(about.Bsize) >> 20, about.Files == 0 || about.Ffree > 0}, nil
}

// checkDisks checks how much may still be written where the folders are.
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
			short = append(short, folder+" can hold no more files")
		case found.free < scarceDisk:
			short = append(short, fmt.Sprintf("%s has %d MiB", folder, found.free))
		}
		switch {
		case !found.files || found.free < leastDisk:
			result.Level = runtime.LevelFailed
		case found.free < scarceDisk && result.Level == runtime.LevelOK:
			result.Level = runtime.LevelWarning
		}
	}
	limits := fmt.Sprintf("warning below %d MiB, failure below %d MiB", scarceDisk, leastDisk)
	switch {
	case len(short) > 0:
		result.Message = fmt.Sprintf("free disk is short (%s): %s", limits, strings.Join(short, ", "))
		result.Cure = "remove what is not needed there, or use other folders"
	case len(unknown) > 0:
		return runtime.CheckSkipped("free disk is not known: %s", strings.Join(unknown, ", "))
	default:
		result.Message = fmt.Sprintf("free disk is enough (%s) in %s", limits, strings.Join(folders, ", "))
	}
	return result
}
