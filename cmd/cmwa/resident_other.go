//go:build !linux

package main

// releaseProgram does nothing: only Linux is known to return pages of a program.
func releaseProgram() {}
