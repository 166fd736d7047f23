package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

//go:generate go test -run ^TestKillPointTable$ -update .

// killTable is the document with the table of the kill points.
const killTable = "killpoints.md"

const killTableHead = `# What happens to a job if its agent is killed

An agent can be killed at any of these points. Its job still ends once, with the right outcome. Within a minute after
the agent has been started again with the same state folder, the service knows the outcome, and everything that the job
created is removed. The only exception is ` + "`poll_answered`" + ` with Pulumi Cloud: see its row.

The rows are in the order in which a job usually reaches the points. TestKillPoints kills a real agent at each point:
in ` + "`make test`" + ` with one ` + "`deploy_target`" + `, in ` + "`make soak`" + ` with each.
TestKillPointsInPod kills an agent in a Pod, and replaces the Pod. TestKillPointsLeased kills an agent that runs a scan;
the scan is completed under its first or its second lease. Other tests kill the runner, its container or Pod, dockerd
(with and without live-restore) and containerd, simulate a restart of the machine, and fill the disks of the state
folder, the shared folder and the engine. This file is generated: run ` + "`go generate ./cmd/cmwa`" + `.

| point | what has happened | a restarted agent | not with |
| --- | --- | --- | --- |
`

// TestKillPointTable compares the document with the table of package killpoint.
func TestKillPointTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(killTableHead)
	for _, e := range killpoint.Points() {
		var absent []string
		for _, target := range slices.Sorted(maps.Keys(e.Absent)) {
			absent = append(absent, fmt.Sprintf("%s: %s", target, e.Absent[target]))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.Point, e.Moment, e.Outcome, strings.Join(absent, "; "))
	}
	if *update {
		if err := os.WriteFile(killTable, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(b.String(), readText(t, killTable)); diff != "" {
		t.Errorf("%s is not current, run go generate ./cmd/cmwa (-want +got):\n%s", killTable, diff)
	}
}
