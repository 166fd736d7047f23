package killpoint

// Point is the name of a point between the claim of a job and its removal.
type Point string

// The points, in the usual order. The order depends on the target: with docker, Attached
// comes before or after SetupRunning, and with process, HandoffRecorded comes before
// InstanceCreated.
const (
	PollAnswered      Point = "poll_answered"
	Journalled        Point = "journalled"
	DefinitionFetched Point = "definition_fetched"
	SetupRunning      Point = "setup_running"
	ImagePulling      Point = "image_pulling"
	FolderCreated     Point = "folder_created"
	InstanceCreated   Point = "instance_created"
	Attached          Point = "attached"
	HandoffRecorded   Point = "handoff_recorded"
	HandoffHalf       Point = "handoff_half"
	HandoffStored     Point = "handoff_stored"
	HandoffSent       Point = "handoff_sent"
	Started           Point = "started"
	Running           Point = "running"
	RunnerEnded       Point = "runner_ended"
	Reported          Point = "reported"
	Removed           Point = "removed"
	SlotFreed         Point = "slot_freed"
)

// Outcome is what happens to a job whose agent is killed at a point and started again.
type Outcome string

// The outcomes. Each text describes what a restarted agent does.
const (
	// Requeued: only the killed process had the claim.
	Requeued Outcome = "does not know of the job: cmwa-cloud gives it to the next poll after 35 s, and it succeeds; " +
		"Pulumi Cloud fails it after ten minutes without a heartbeat"
	// Restarted: the claim is in the journal, and nothing of the job can have run.
	Restarted Outcome = "removes what is left of the start, and starts the job again; the job succeeds"
	// Adopted: the runner has the job, or may have it.
	Adopted Outcome = "adopts the job, which has continued; the job succeeds, and is removed"
	// Cleaned: the service knows the outcome.
	Cleaned Outcome = "removes what is left of the job; the service knows the outcome already"
)

// Entry is one row of the table of points.
type Entry struct {
	Point   Point
	Moment  string            // what has happened, in one sentence
	Outcome Outcome           // for the targets that have the point
	Absent  map[string]string // why a target does not have the point, by deploy_target
}

// Points returns the table of all points, in the usual order.
func Points() []Entry {
	return []Entry{
		{PollAnswered, "The service has answered a poll with a job.", Requeued, nil},
		{Journalled, "The journal has the claim.", Restarted, nil},
		{DefinitionFetched, "The agent has the definition of the job.", Restarted, nil},
		{SetupRunning, "The service knows that step 0 runs.", Restarted, nil},
		{ImagePulling, "The engine has begun to pull the image.", Restarted, map[string]string{
			"kubernetes": "the kubelet pulls the image", "process": "uses no image",
		}},
		{FolderCreated, "The folder of the job exists.", Restarted, map[string]string{
			"kubernetes": "has no folder",
		}},
		{InstanceCreated, "The container, the Pod or the process of the runner exists.", Restarted, nil},
		{Attached, "The agent is connected to the standard input of the runner.", Restarted, map[string]string{
			"kubernetes": "writes the handoff into the Pod", "process": "creates the pipe with the process",
		}},
		{HandoffRecorded, "The journal records that the job may run.", Restarted, nil},
		{HandoffHalf, "The runner can read half of the handoff.", Restarted, map[string]string{
			"kubernetes": "writes the handoff at once",
		}},
		{HandoffStored, "The ConfigMap of a large handoff exists.", Adopted, map[string]string{
			"docker": "writes into one stream", "process": "writes into one pipe",
		}},
		{HandoffSent, "The runner can read the whole handoff.", Adopted, nil},
		{Started, "The start has succeeded.", Adopted, nil},
		{Running, "The agent has read that step 0 has succeeded.", Adopted, nil},
		{RunnerEnded, "The agent knows that the runner has ended.", Cleaned, nil},
		{Reported, "The service knows the outcome of the job.", Cleaned, nil},
		{Removed, "The container, the Pod or the folder is removed.", Cleaned, nil},
		{SlotFreed, "The slot of the job is free for the next poll.", Cleaned, nil},
	}
}
