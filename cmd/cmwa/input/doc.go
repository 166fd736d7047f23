// Package input reads the files that a command line names: files, pipes, standard
// input and folders.
//
// It knows the file system, and which files of a folder cmwa vet checks. It does not
// know what is done with a file. Only cmd/cmwa imports it.
//
// Decisions:
//
//   - A file that cannot be read is a problem with a position like any other, so that
//     every format of a report contains it, and the other files are checked all the
//     same.
//   - A folder is walked by content and not by name: a repository contains YAML and
//     JSON files of many programs.
package input
