// Package watch knows that the bytes behind some paths may have changed. It will
// never know what they mean: it compares them, and says "look again".
//
// Folders are watched, not files. An editor that renames a new file over the old
// one, and a ConfigMap whose ..data link is swapped, leave a watch on the file
// deaf for ever, and no event of such a swap names the file. So every event, of
// whatever name, means only that it is time to compare; an overflow of the
// kernel's queue means the same.
//
// A file may be reached through links. The folder of every link on the way is
// watched, and so is the folder that the file itself lies in; they are found
// anew after each change, because a change may be another way. Where a folder
// is not there, the nearest one above it is watched until it is.
//
// Some changes make no event: those of another machine on a network file system,
// and those below a mount of a single file. A slow comparison is the net, and
// stands in altogether where the kernel has no watches left ([Polling]). What no
// new file can take the place of, [Frozen] tells.
package watch
