//go:build !linux

package main

// releaseProgram does nothing: it is implemented for Linux only.
func releaseProgram() {}
