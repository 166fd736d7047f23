package watch

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// mountTable lists the mounts of this process; see proc_pid_mountinfo(5).
const mountTable = "/proc/self/mountinfo"

// Frozen reports whether a path still leads to the old file after an editor or the kubelet has
// replaced the original. This is so for a file that is itself a mount, such as a bind mount of
// one file or a ConfigMap mounted with subPath, and for a file in a directory mounted with
// subPath. The hint is to mount the directory that contains the file. The result is false if
// the table of mounts cannot be read, or the path cannot be resolved.
func Frozen(path string) bool {
	table, err := os.Open(mountTable)
	if err != nil {
		return false
	}
	defer table.Close()
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return false
	}
	return frozen(table, resolved)
}

// frozen is Frozen for a resolved path and a table of mounts.
func frozen(table io.Reader, path string) bool {
	lines := bufio.NewScanner(table)
	mount, subPath := "", false
	for lines.Scan() {
		// id, parent, device, root of the mount in its file system, mount point, …
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		root, point := unescape(fields[3]), unescape(fields[4])
		within := point == path || strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if within && len(point) >= len(mount) { // of several mounts at one mount point, the last is in use
			mount, subPath = point, strings.Contains(root, "/volume-subpaths/")
		}
	}
	return mount == path || subPath
}

// unescape decodes white space and backslashes, which the table writes in octal.
func unescape(field string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(field)
}
