package process

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "42 (x) S 1 1 1 (y) Z) S 1 42 41 " + strings.Repeat("0 ", 15) + "777 0 0\n"
	p, ok := parseStat(42, line, "@boot")
	if want := (proc{pid: 42, session: 41, began: 7770 * time.Millisecond, stamp: "777@boot"}); !ok || p != want {
		t.Errorf("read %+v (%v), want %+v", p, ok, want)
	}
}

func TestListProcesses(t *testing.T) {
	self, ok, err := inspectProcess(os.Getpid())
	if err != nil || !ok || self.ended || self.stamp == "" {
		t.Fatalf("inspectProcess returns %+v (%v, %v) for this process", self, ok, err)
	}
	all, err := listProcesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p == self {
			return
		}
	}
	t.Errorf("%+v is not among the %d processes", self, len(all))
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (init) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 4 1 1")
	f.Add(") ) (")
	f.Fuzz(func(t *testing.T, line string) {
		if p, ok := parseStat(1, line, ""); ok && p.stamp == "" {
			t.Errorf("%q gives a process without a start", line)
		}
	})
}
