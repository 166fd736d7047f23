package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
