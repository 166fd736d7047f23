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
	DirectoryCreated  Point = "directory_created"
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

// Points returns all points, in the usual order.
func Points() []Point {
	return []Point{
		PollAnswered, Journalled, DefinitionFetched, SetupRunning, ImagePulling, DirectoryCreated,
		InstanceCreated, Attached, HandoffRecorded, HandoffHalf, HandoffStored, HandoffSent, Started,
		Running, RunnerEnded, Reported, Removed, SlotFreed,
	}
}
