//go:build !linux && !darwin

package runner

import "errors"

// listProcesses returns an error. The interrupter then interrupts the whole process group of
// a step.
func listProcesses() ([]process, error) { return nil, errors.ErrUnsupported }

func handlesInterrupt(int) bool { return false }

func programOf(int) string { return "" }
