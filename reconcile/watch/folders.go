package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// maxLinks is how many links a way may have; the kernel follows no more either.
const maxLinks = 40

// follow goes the way of a path as the kernel does, through links. It calls enter
// with every folder on the way, from the root on, before it looks at what lies in
// it; so whoever begins to watch a folder then misses nothing of the way.
//
// It returns the names of all steps, of which one is named by each event that is
// about the way, and the folders in which other names count too: that of the file,
// which may have a second name there, those of the links, and the one where the
// way ends early.
func follow(path string, enter func(folder string)) (steps, ends []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil
	}
	at := "/"
	enter(at)
	steps = append(steps, at)
	way := strings.Split(path, "/")
	for links := 0; len(way) > 0; {
		step := way[0]
		way = way[1:]
		switch step {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		steps = append(steps, step)
		next := filepath.Join(at, step)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return steps, append(ends, at)
		case info.Mode()&fs.ModeSymlink != 0:
			ends = append(ends, at)
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return steps, ends
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			way = append(strings.Split(target, "/"), way...)
		case info.IsDir():
			at = next
			enter(at)
		default:
			return steps, append(ends, at)
		}
	}
	return steps, append(ends, at)
}

// sight is what events can tell of the paths, and how they are to be read.
type sight struct {
	steps map[string]bool // names of what is on the ways
	ends  map[string]bool // folders in which every name counts
	blind bool            // a folder on a way is there and cannot be watched
}

// counts reports whether what an event names may change what a path leads to. In
// a folder that is only passed through, such as /tmp, most of it does not. Names
// are told apart without their folders there, because a folder that is mounted
// twice is watched under one of its names only.
func (s sight) counts(name string) bool {
	return s.steps[filepath.Base(name)] || s.ends[filepath.Dir(name)]
}

// folderID tells one folder from another at the same path, and from itself with
// other permissions.
type folderID struct {
	device, inode  uint64
	mode, uid, gid uint32
}

// watches are the folders that have a watch of the kernel, by path.
type watches map[string]folderID

// arm gives every folder that matters now a watch of the kernel, and removes the
// others. A watch stays as long as its path leads to the same folder, so that no event
// of that folder is lost.
func (w *Watcher) arm(notify *fsnotify.Watcher, active watches) sight {
	w.mu.Lock()
	paths := w.paths
	w.mu.Unlock()

	// Remove watches whose folder has been replaced, before any is added: folders that
	// change places would otherwise take the watch of each other.
	alive := notify.WatchList()
	for folder, known := range active {
		if id, err := idOf(folder); err != nil || id != known || !slices.Contains(alive, folder) {
			_ = notify.Remove(folder) // it may be gone
			delete(active, folder)
		}
	}

	// Add what is missing.
	s := sight{steps: map[string]bool{}, ends: map[string]bool{}}
	entered := map[string]bool{}
	enter := func(folder string) {
		if _, ok := active[folder]; ok || entered[folder] {
			entered[folder] = true
			return
		}
		entered[folder] = true
		id, idErr := idOf(folder)
		err := notify.Add(folder)
		switch {
		case err == nil && idErr == nil:
			active[folder] = id
		case err == nil: // removed by the next call
			active[folder] = folderID{}
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			s.blind = true
		}
	}
	for _, path := range paths {
		steps, ends := follow(path, enter)
		for _, step := range steps {
			s.steps[step] = true
		}
		for _, folder := range ends {
			s.ends[folder] = true
		}
	}

	// Remove what is no longer needed.
	for folder := range active {
		if !entered[folder] {
			_ = notify.Remove(folder) // it may be gone
			delete(active, folder)
		}
	}
	return s
}

// idOf returns the id of a folder. The error is errors.ErrUnsupported where folders
// have none.
func idOf(folder string) (folderID, error) {
	info, err := os.Stat(folder)
	if err != nil {
		return folderID{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return folderID{}, errors.ErrUnsupported
	}
	// Dev is signed on macOS, and Mode is shorter there.
	return folderID{uint64(stat.Dev), stat.Ino, uint32(stat.Mode), stat.Uid, stat.Gid}, nil
}
