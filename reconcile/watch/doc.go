// Package watch reports that files behind some paths may have changed: their content,
// or the file that a path leads to. It compares bytes and never interprets them.
//
// Directories are watched, not files. A watch on a file ends silently when an editor
// renames a new file over it, or when the kubelet replaces the ..data link of a ConfigMap. No
// event of such a replacement names the file. So an event means only that the files must be
// compared; an overflow of the kernel's queue means the same.
//
// A file may be reached through links, and any directory on its path may be replaced.
// Every directory from the root to the file is watched, along every link. The path is
// resolved again after each change, because it may lead to another file then. In
// directories that the path only passes through, events that name no element of the
// path are ignored, because such a directory may be busy.
//
// Some changes cause no event: those of another machine on a network file system, new
// mounts, and changes of a file that is itself a mount. A comparison at intervals finds these
// changes. The interval is shorter in mode [Polling], when the kernel cannot watch all
// directories: the user has no inotify watches left, or a directory may be entered but not
// read. [Frozen] reports files whose replacement is never detected.
package watch
