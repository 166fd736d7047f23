package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram releases the memory of the program's own file. Many of its pages are
// needed only while the agent and its pools start, such as the code that initialises
// packages. Before the first pool starts, the call saves 6 of 32 MB; when a Kubernetes
// pool runs, 3.8 of 38 MB. The kernel reads a page that is needed again from the page
// cache. So the program also works without these pages, and errors are ignored. A call
// takes 1.3 ms, and reading the needed pages again 1 ms.
//
// releaseProgram does not change a mapping with anonymous pages. These pages contain
// relocations of a position-independent program, or breakpoints of a debugger, which are
// not in the file.
func releaseProgram() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	text, err := os.ReadFile("/proc/self/smaps") // see proc(5)
	if err != nil {
		return
	}
	begin, end := uint64(0), uint64(0) // of the mapping that the lines describe; 0, 0 if it must not be changed
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			begin, end = 0, 0
			if len(fields) == 6 && fields[5] == program && !strings.Contains(fields[1], "w") {
				begin, end = bounds(fields[0])
			}
		case len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0" && begin < end:
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED)
		}
	}
}

// bounds returns the two addresses of a mapping. It returns 0, 0 if they cannot be parsed.
func bounds(text string) (begin, end uint64) {
	from, to, _ := strings.Cut(text, "-")
	begin, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil {
		return 0, 0
	}
	return begin, end
}
