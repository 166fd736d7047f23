// Package watch knows that the bytes behind some paths may have changed, or that
// another file has them now. It will never know what they mean: it compares them,
// and says "look again".
//
// Folders are watched, not files. An editor that renames a new file over the old
// one, and a ConfigMap whose ..data link is swapped, leave a watch on the file
// deaf for ever, and no event of such a swap names the file. So an event means
// only that it is time to compare; an overflow of the kernel's queue means the same.
//
// A file may be reached through links, and any folder on the way may be replaced.
// Every folder from the root on is watched, along every link, until the way ends;
// the way is found anew after each change, because a change may be another way.
// In folders that are only passed through, events that name nothing on the way
// are passed by, as such a folder may be a busy one.
//
// Some changes make no event: those of another machine on a network file system,
// new mounts, and those below a mount of a single file. A slow comparison is the
// net. It comes often where the kernel does not tell of all that matters, because
// it has no watches left or a folder may be entered and not read ([Polling]). What
// no new file can take the place of, [Frozen] tells.
package watch
