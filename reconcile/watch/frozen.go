package watch

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// mountTable is where Linux tells a process of its mounts; see proc_pid_mountinfo(5).
const mountTable = "/proc/self/mountinfo"

// Frozen reports whether a path stays what it is when the file that it was made from
// is replaced, as editors and the kubelet do it: a file that is itself a mount, as a bind mount of one
// file and a ConfigMap mounted with subPath are, or one below a folder mounted
// with subPath. The remedy is to mount the folder that holds it. Where the table
// of mounts cannot be read, nothing is known to be frozen.
func Frozen(path string) bool {
	table, err := os.Open(mountTable)
	if err != nil {
		return false
	}
	defer table.Close()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	if real, err = filepath.Abs(real); err != nil {
		return false
	}
	return frozen(table, real)
}

// frozen looks for the mount of a path in a table of mounts.
func frozen(table io.Reader, path string) bool {
	lines := bufio.NewScanner(table)
	found, subPath := "", false
	for lines.Scan() {
		// id, parent, device, root of the mount in its file system, mount point, …
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		root, point := unescaped(fields[3]), unescaped(fields[4])
		within := point == path || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if within && len(point) >= len(found) { // the last of several on one point counts
			found, subPath = point, strings.Contains(root, "/volume-subpaths/")
		}
	}
	return found == path || subPath
}

// unescaped undoes how the table writes blanks and the like, in octal.
func unescaped(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(field)
}
