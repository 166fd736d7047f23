package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// notLeased are the points that the leased work of this test does not reach. Leased work is
// not polled as a job and has no record in the journal. The test does not pull an image, and
// does not set shared_volume_directory. Only the target kubernetes, which this test does not
// use, has the point HandoffStored.
var notLeased = []killpoint.Point{
	killpoint.PollAnswered, killpoint.Journalled, killpoint.HandoffRecorded, killpoint.ImagePulling,
	killpoint.DirectoryCreated, killpoint.HandoffStored,
}

// TestKillPointsLeased kills an agent at each point of leased work, and starts the agent
// again. The work must be completed under its first or its second lease, and must leave
// nothing.
func TestKillPointsLeased(t *testing.T) {
	t.Parallel()
	for i, entry := range killEntries {
		if slices.Contains(notLeased, entry.point) {
			continue
		}
		present := slices.DeleteFunc([]string{"docker", "process"}, func(target string) bool {
			return entry.absent[target] != ""
		})
		for _, target := range present {
			if !inTurn(i, target, present) {
				continue
			}
			t.Run(target+"/"+string(entry.point), func(t *testing.T) {
				t.Parallel()
				newWorld(t, target, leaseFlags()...).killLeased(entry.point)
			})
		}
	}
}

// killLeased kills an agent that runs a scan at a point, starts the agent again, and checks
// the outcome of the scan.
func (w *world) killLeased(point killpoint.Point) {
	w.t.Helper()
	bin, err := staticPrograms()
	w.must(err)
	w.bin = bin
	directory := filepath.Join(w.directory, "witness")
	w.must(os.Mkdir(directory, 0o777))
	w.must(os.Chmod(directory, 0o777))
	volumes := fmt.Sprintf("docker: {network: host, volumes: ['%s:%s']}", directory, directory)
	scan := w.scan(fmt.Sprintf("cd '%s'; echo x >>began; sleep 1; echo x >>finished", directory))
	w.runUntil(point, volumes)
	w.agent(volumes)
	returned := time.Now()
	view := scan.await("Completed")
	w.eventually("nothing is left", func() bool {
		if w.target == "docker" && w.engine("ps", "--all", "--quiet", "--filter", "volume="+directory) != "" {
			return false
		}
		return len(w.leftovers()) == 0
	})
	took := time.Since(returned).Round(100 * time.Millisecond)
	if took > knownLimit {
		w.t.Errorf("the scan was completed and removed after %s, want a minute at most", took)
	}

	// The work runs at most once under each lease.
	began, finished := len(w.lines(directory, "began")["began"]), len(w.lines(directory, "finished")["finished"])
	if len(view.Leases) > 2 || began > len(view.Leases) || finished == 0 {
		w.t.Errorf("%d runs began and %d finished under the leases %+v", began, finished, view.Leases)
	}
	w.t.Logf("%d leases, %d runs began, %d finished; completed and removed after %s",
		len(view.Leases), began, finished, took)
}
