//go:build !race

package kube

// raceEnabled is whether the race detector is built in.
const raceEnabled = false
