package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestReleaseProgram(t *testing.T) {
	resident := func() int {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, value, _ := strings.Cut(string(text), "RssFile:")
		kb, err := strconv.Atoi(strings.Fields(value)[0])
		if err != nil {
			t.Fatal(err)
		}
		return kb
	}
	before := resident()
	releaseProgram()
	if after := resident(); after > before/2 {
		t.Errorf("%d kB of files are resident after releaseProgram, %d kB before it, want at most half", after, before)
	}
	if got := tell(nil, "version"); got.code != 0 {
		t.Errorf("the program does not work after releaseProgram: %+v", got)
	}
}
