package watch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many links a way may have; the kernel follows no more either.
const maxLinks = 40

// folders returns the folders in which a change can change what a path leads to:
// that of the file, that of every link on the way, and, where the way ends
// early, the one where it ends.
func folders(path string) []string {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var found []string
	at := "/"
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
		next := filepath.Join(at, step)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return append(found, at)
		case info.Mode()&fs.ModeSymlink != 0:
			found = append(found, at)
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return found
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			way = append(strings.Split(target, "/"), way...)
		case info.IsDir():
			at = next
			if len(way) == 0 {
				found = append(found, at)
			}
		default:
			return append(found, at)
		}
	}
	return found
}
