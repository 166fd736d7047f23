//go:build killpoints

package killpoint

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Variable is the environment variable with the point at which the process ends.
const Variable = "CMWA_KILL_AT"

// exitUsage is the exit code of a process whose variable names no point.
const exitUsage = 2

var (
	chosen = choose(os.Getenv(Variable))
	left   atomic.Int64 // hits of the chosen point until the process ends
)

// choose returns the point that a value of [Variable] names, and sets the number of hits.
// It ends the process if the value names no point.
func choose(value string) Point {
	if value == "" {
		return ""
	}
	name, count, counted := strings.Cut(value, ":")
	hits, err := 1, error(nil)
	if counted {
		hits, err = strconv.Atoi(count)
	}
	if err != nil || hits < 1 || !slices.Contains(Points(), Point(name)) {
		fmt.Fprintf(os.Stderr, "%s=%s: the value must be the name of a point, or NAME:N\n", Variable, value)
		os.Exit(exitUsage)
	}
	left.Store(int64(hits))
	return Point(name)
}

// Hit ends the process if the environment variable chose this hit of this point.
func Hit(p Point) {
	if p != chosen || left.Add(-1) != 0 {
		return
	}
	process, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		panic(fmt.Sprintf("cannot kill this process at %s: %v", p, err))
	}
	select {} // until the signal arrives
}

// Write writes the text to w in two parts, with a hit of the point between them.
func Write(p Point, w io.Writer, text []byte) (int, error) {
	half := len(text) / 2
	n, err := w.Write(text[:half])
	if err != nil {
		return n, err
	}
	Hit(p)
	m, err := w.Write(text[half:])
	return n + m, err
}
