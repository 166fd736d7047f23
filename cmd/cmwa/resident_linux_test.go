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
		_, rest, _ := strings.Cut(string(text), "RssFile:")
		kb, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return kb
	}
	before := resident()
	releaseProgram()
	if after := resident(); after > before/2 {
		t.Errorf("%d kB of files are resident, before %d kB", after, before)
	}
	if got := tell(nil, "version"); got.code != 0 {
		t.Errorf("the program does not work afterwards: %+v", got)
	}
}
