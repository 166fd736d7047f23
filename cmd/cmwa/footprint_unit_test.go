package main

import (
	"strings"
	"testing"
)

func TestFootprintUnit(t *testing.T) {
	t.Run("an additional goroutine or file is reported with its owner", func(t *testing.T) {
		first := footprint{goroutines: map[string]int{"a": 2}, files: map[string]int{"socket": 3}, threads: 5}
		if more := first.beyond(first); len(more) > 0 {
			t.Errorf("equal footprints: beyond returns %q, want nothing", more)
		}
		later := footprint{
			goroutines: map[string]int{"a": 2, "b": 1}, files: map[string]int{"socket": 4}, threads: 5 + moreThreads,
		}
		want := "1 instead of 0 goroutines of b; 4 instead of 3 files: socket"
		if got := strings.Join(later.beyond(first), "; "); got != want {
			t.Errorf("beyond returns %q, want %q", got, want)
		}
	})
	t.Run("each count is the smaller one of two footprints", func(t *testing.T) {
		a := footprint{goroutines: map[string]int{"a": 2, "call": 1}}
		b := footprint{goroutines: map[string]int{"a": 3}}
		if least := a.least(b); len(least.goroutines) != 1 || least.goroutines["a"] != 2 {
			t.Errorf("the smaller counts are %v, want a: 2", least.goroutines)
		}
	})
	t.Run("owner is the function that started a goroutine", func(t *testing.T) {
		for stack, want := range map[string]string{
			"goroutine 1 [running]:\nmain.main()\n\t/x/main.go:1 +0x1": "main.main",
			"goroutine 7 [select]:\nnet/http.(*persistConn).writeLoop(0xc0)\n\t/x/transport.go:1 +0x1\n" +
				"created by net/http.(*Transport).dialConn in goroutine 6\n" +
				"\t/x/transport.go:2 +0x2": "http.(*Transport).dialConn",
			"goroutine 8 [select, 2 minutes]:\n" + module +
				"runtime.(*jobRun).pollStatus(0xc0, {0x1, 0x2})\n\t/x/run.go:1 +0x1\n" +
				module + "runtime.(*jobRun).start.func1()\n\t/x/run.go:2 +0x2\n" +
				"sync.(*WaitGroup).Go.func1()\n\t/x/waitgroup.go:3 +0x3\n" +
				"created by sync.(*WaitGroup).Go in goroutine 5\n" +
				"\t/x/waitgroup.go:4 +0x4": "runtime.(*jobRun).start.func1",
		} {
			if got := owner(stack); got != want {
				t.Errorf("the owner is %q, want %q", got, want)
			}
		}
	})
}
