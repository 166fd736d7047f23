// Package input reads the files that a command line names: files, pipes, standard
// input and directories.
//
// It knows the file system, and which files of a directory cmwa vet checks. It does not
// know what is done with a file. Only cmd/cmwa imports it.
//
// Decisions:
//
//   - A file that cannot be read is reported as a problem with a position, so that every
//     format of a report contains it. The other files are still checked.
//   - In a directory, the content of a file decides whether it is checked, and not only its
//     name: a repository contains YAML and JSON files of many programs.
package input
