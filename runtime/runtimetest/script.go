package runtimetest

import (
	"fmt"
	"io"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Forever is the length of a job that does not end by itself.
const Forever = time.Duration(1<<63 - 1)

// Script is the course of a job in a fake [Executor]. The job of the zero value succeeds
// at once.
type Script struct {
	Starting time.Duration // duration of Start
	Fail     error         // returned by Start after Starting
	Remains  bool          // a Start that fails leaves an ended instance
	FailLate []error       // returned by the first calls of Start, after they have read the handoff

	NeverStarted bool // the runner of an earlier agent's instance waits for a handoff, and ends after Running

	Running  time.Duration   // from the start to the end; may be Forever
	Exit     runtime.Exit    // of a job that ends by itself
	Progress []TimedProgress // output of the runner; nil is the progress that fits Exit
	Silent   bool            // the runner has no output

	Breaks    []time.Duration // times after the start at which each open stream breaks off; sorted
	BreakErr  error           // returned by a stream that breaks off; nil: it ends as if the job had ended
	FollowErr error           // returned by Follow until the first of Breaks

	WaitErrors []error // returned at once by the first calls of Wait

	Interrupting time.Duration // from an interrupt to the end; 0 ignores interrupts
	Ending       time.Duration // from a TERM to the end; Forever ignores TERM
	OnTerm       runtime.Exit  // of a job that ends after an interrupt or a TERM
	RemoveErrors []error       // returned at once by the first calls of Remove
	Removal      time.Duration // duration of Remove after the end of the job
	Hung         bool          // Remove blocks until its context ends
}

// TimedProgress is one line of progress and its time after the start.
type TimedProgress struct {
	After time.Duration
	runtime.Progress
	Raw func() io.Reader // output in place of the line of Progress, opened once for each stream; may be nil
}

// Operation is an operation of an executor on a job.
type Operation string

// The operations.
const (
	Start     Operation = "start"       // Start was called
	StartDone Operation = "started"     // Start has created the instance
	Interrupt Operation = "interrupt"   // Interrupt was called
	Term      Operation = "term"        // Remove has sent a TERM
	Kill      Operation = "kill"        // Remove has sent a KILL
	Remove    Operation = "remove"      // Remove was called
	RemoveEnd Operation = "removed"     // Remove has removed the instance
	NotEnded  Operation = "not ended"   // Remove was called and has failed
	NotStart  Operation = "no start"    // Start has returned an error
	Adopted   Operation = "was adopted" // the instance was added by [Executor.Adopt]
)

// Event is one operation of a fake executor.
type Event struct {
	Time      time.Time
	Operation Operation
	Job       string
}

// String returns the operation and the job, for the messages of failed tests.
func (e Event) String() string { return fmt.Sprintf("%s %s", e.Operation, e.Job) }
