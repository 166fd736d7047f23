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

// maxLinks is the largest number of links in a path; the kernel has the same limit.
const maxLinks = 40

// resolve follows a path as the kernel does, through links. It calls enter with every
// directory on the path, from the root on, before it reads an element of that directory:
// a caller that watches the directory in enter misses no change of the path.
//
// It returns two lists. An event about the path has one of names, the elements of the path.
// In dirs, events with any other name match too. These are the directory of the file, where
// the file may have a second name; the directories that contain links; and, if an element of
// the path is missing, the directory in which it is missing.
func resolve(path string, enter func(dir string)) (names, dirs []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil
	}
	dir := "/"
	enter(dir)
	names = append(names, dir)
	remaining := strings.Split(path, "/")
	for links := 0; len(remaining) > 0; {
		name := remaining[0]
		remaining = remaining[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
			continue
		}
		names = append(names, name)

		// Follow a link, or enter a directory. Anything else ends the path.
		next := filepath.Join(dir, name)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return names, append(dirs, dir)
		case info.Mode()&fs.ModeSymlink != 0:
			dirs = append(dirs, dir)
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return names, dirs
			}
			if filepath.IsAbs(target) {
				dir = "/"
			}
			remaining = append(strings.Split(target, "/"), remaining...)
		case info.IsDir():
			dir = next
			enter(dir)
		default:
			return names, append(dirs, dir)
		}
	}
	return names, append(dirs, dir)
}

// watchSet determines which events match.
type watchSet struct {
	names      map[string]bool // of the elements of all paths
	dirs       map[string]bool // in which events with any name match
	incomplete bool            // a directory on a path exists and cannot be watched
}

// matches reports whether an event with a name may be about a change of a path. Most events in
// a directory that a path only passes through, such as /tmp, do not match. The elements are
// compared without their directory, because a directory that is mounted at two paths is
// watched under only one of them.
func (s watchSet) matches(name string) bool {
	return s.names[filepath.Base(name)] || s.dirs[filepath.Dir(name)]
}

// dirID identifies a directory and its permissions. It changes if another directory replaces
// the directory at a path, or if the permissions change.
type dirID struct {
	device, inode  uint64
	mode, uid, gid uint32
}

// watches are the directories that the kernel watches, by path.
type watches map[string]dirID

// updateWatches makes the kernel watch every directory of the present paths, and ends all other
// watches. A watch stays as long as its path leads to the same directory, so that no
// event of that directory is lost.
func (w *Watcher) updateWatches(notify *fsnotify.Watcher, active watches) watchSet {
	w.mu.Lock()
	paths := w.paths
	w.mu.Unlock()

	// Remove watches of directories that were replaced, before any is added: two
	// directories that swap places would otherwise take each other's watch.
	alive := notify.WatchList()
	for dir, known := range active {
		if id, err := idOf(dir); err != nil || id != known || !slices.Contains(alive, dir) {
			_ = notify.Remove(dir) // fails if the watch has ended
			delete(active, dir)
		}
	}

	s := watchSet{names: map[string]bool{}, dirs: map[string]bool{}}
	entered := map[string]bool{}
	enter := func(dir string) {
		if _, ok := active[dir]; ok || entered[dir] {
			entered[dir] = true
			return
		}
		entered[dir] = true
		id, idErr := idOf(dir)
		err := notify.Add(dir)
		switch {
		case err == nil && idErr == nil:
			active[dir] = id
		case err == nil: // without an id, so that the next call removes the watch
			active[dir] = dirID{}
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			s.incomplete = true
		}
	}
	for _, path := range paths {
		names, dirs := resolve(path, enter)
		for _, name := range names {
			s.names[name] = true
		}
		for _, dir := range dirs {
			s.dirs[dir] = true
		}
	}

	for dir := range active {
		if !entered[dir] {
			_ = notify.Remove(dir) // fails if the watch has ended
			delete(active, dir)
		}
	}
	return s
}

// idOf returns the id of a directory. The error is errors.ErrUnsupported on systems
// whose directories have no id.
func idOf(dir string) (dirID, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return dirID{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return dirID{}, errors.ErrUnsupported
	}
	// Dev is signed on macOS, and Mode is shorter there.
	return dirID{uint64(stat.Dev), stat.Ino, uint32(stat.Mode), stat.Uid, stat.Gid}, nil
}
