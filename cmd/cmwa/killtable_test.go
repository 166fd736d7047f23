package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

//go:generate go test -run ^TestKillPointTable$ -update .

// killTable is the document with the table of the kill points.
const killTable = "killpoints.md"

const killTableHead = `# What happens to a job if its agent is killed

An agent can be killed at any of these points. Its job still ends once, with the right outcome. Within a minute after
the agent has been started again with the same state directory, the service knows the outcome, and everything that the
job created is removed. The only exception is ` + "`poll_answered`" + ` with Pulumi Cloud: see its row.

The rows are in the order in which a job usually reaches the points. TestKillPoints kills a real agent at each point:
in ` + "`make test`" + ` with one ` + "`deploy_target`" + `, in ` + "`make soak`" + ` with each.
TestKillPointsInPod kills an agent in a Pod, and replaces the Pod. TestKillPointsLeased kills an agent that runs a scan;
the scan is completed under its first or its second lease. Other tests kill the runner, its container or Pod, dockerd
(with and without live-restore) and containerd, simulate a restart of the machine, and fill the disks of the state
directory, the shared directory and the engine. This file is generated: run ` + "`go generate ./cmd/cmwa`" + `.

| point | what has happened | a restarted agent | not with |
| --- | --- | --- | --- |
`

// killOutcome is what happens to a job whose agent is killed at a point and started again.
type killOutcome string

// The outcomes. Each text describes what a restarted agent does.
const (
	// requeued: only the killed process had the claim.
	requeued killOutcome = "does not know of the job: cmwa-cloud gives it to the next poll after 35 s, " +
		"and it succeeds; Pulumi Cloud fails it after ten minutes without a heartbeat"
	// restarted: the claim is in the journal, and nothing of the job can have run.
	restarted killOutcome = "removes what is left of the start, and starts the job again; the job succeeds"
	// adopted: the runner has the job, or may have it.
	adopted killOutcome = "adopts the job, which has continued; the job succeeds, and is removed"
	// cleaned: the service knows the outcome.
	cleaned killOutcome = "removes what is left of the job; the service knows the outcome already"
)

// killEntry is one row of the table of points.
type killEntry struct {
	point   killpoint.Point
	moment  string            // what has happened, in one sentence
	outcome killOutcome       // for the targets that have the point
	absent  map[string]string // why a target does not have the point, by deploy_target
}

// killEntries is the table of all points, in the usual order.
var killEntries = []killEntry{
	{killpoint.PollAnswered, "The service has answered a poll with a job.", requeued, nil},
	{killpoint.Journalled, "The journal has the claim.", restarted, nil},
	{killpoint.DefinitionFetched, "The agent has the definition of the job.", restarted, nil},
	{killpoint.SetupRunning, "The service knows that step 0 runs.", restarted, nil},
	{killpoint.ImagePulling, "The engine has started to pull the image.", restarted, map[string]string{
		"kubernetes": "the kubelet pulls the image", "process": "uses no image",
	}},
	{killpoint.DirectoryCreated, "The directory of the job exists.", restarted, map[string]string{
		"kubernetes": "has no directory",
	}},
	{killpoint.InstanceCreated, "The container, the Pod or the process of the runner exists.", restarted, nil},
	{killpoint.Attached, "The agent is connected to the standard input of the runner.", restarted, map[string]string{
		"kubernetes": "writes the handoff into the Pod", "process": "creates the pipe with the process",
	}},
	{killpoint.HandoffRecorded, "The journal records that the job may run.", restarted, nil},
	{killpoint.HandoffHalf, "The runner can read half of the handoff.", restarted, map[string]string{
		"kubernetes": "writes the handoff at once",
	}},
	{killpoint.HandoffStored, "The ConfigMap of a large handoff exists.", adopted, map[string]string{
		"docker": "writes into one stream", "process": "writes into one pipe",
	}},
	{killpoint.HandoffSent, "The runner can read the whole handoff.", adopted, nil},
	{killpoint.Started, "The start has succeeded.", adopted, nil},
	{killpoint.Running, "The agent has read that step 0 has succeeded.", adopted, nil},
	{killpoint.RunnerEnded, "The agent knows that the runner has ended.", cleaned, nil},
	{killpoint.Reported, "The service knows the outcome of the job.", cleaned, nil},
	{killpoint.Removed, "The container, the Pod or the directory is removed.", cleaned, nil},
	{killpoint.SlotFreed, "The slot of the job is free for the next poll.", cleaned, nil},
}

// TestKillPointTable checks that the table has all points, and compares it with the document.
func TestKillPointTable(t *testing.T) {
	var points []killpoint.Point
	var b strings.Builder
	b.WriteString(killTableHead)
	for _, e := range killEntries {
		points = append(points, e.point)
		var absent []string
		for _, target := range slices.Sorted(maps.Keys(e.absent)) {
			if !slices.Contains([]string{"docker", "kubernetes", "process"}, target) || e.absent[target] == "" {
				t.Errorf("%s is absent for %q without a reason, or for an unknown target", e.point, target)
			}
			absent = append(absent, fmt.Sprintf("%s: %s", target, e.absent[target]))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.point, e.moment, e.outcome, strings.Join(absent, "; "))
	}
	if !slices.Equal(points, killpoint.Points()) {
		t.Errorf("the table has the points %v, want %v", points, killpoint.Points())
	}
	wantGolden(t, killTable, b.String())
}
