package runtimetest

import (
	"fmt"
	"io"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Forever is the length of a job that does not end by itself.
const Forever = time.Duration(1<<63 - 1)

// Script says what becomes of a job in a fake [Executor]. The zero value is a
// job that succeeds at once.
type Script struct {
	Starting time.Duration // that Start takes
	Fail     error         // that Start then ends with

	Running  time.Duration // from the start to its own end; Forever is possible
	Exit     runtime.Exit  // when it has ended by itself
	Progress []Beat        // what the runner says; nil is the progress that fits Exit
	Mute     bool          // the runner says nothing at all

	Breaks    []time.Duration // after the start, when every open stream of progress breaks off; sorted
	BreakErr  error           // that it breaks off with; nil looks like the end
	FollowErr error           // that Follow ends with until the first of Breaks

	WaitErrors []error // what the first calls of Wait end with, instead of waiting

	Ending       time.Duration // from a TERM to the end; Forever takes no notice of it
	OnTerm       runtime.Exit  // when it ended because of a TERM
	RemoveErrors []error       // what the first calls of Remove end with, instead of removing
	Removal      time.Duration // that Remove takes besides
	Hung         bool          // Remove does nothing until its context ends
}

// Beat is one line of progress and when it is said, counted from the start.
type Beat struct {
	After time.Duration
	runtime.Progress
	Raw func() io.Reader // output in place of the line, opened once for each stream; nil is the line
}

// Deed is something that an executor did to a job.
type Deed string

// The deeds.
const (
	Start     Deed = "start"       // Start was called
	StartDone Deed = "started"     // and has returned an id
	Term      Deed = "term"        // Remove has asked the runner to end
	Kill      Deed = "kill"        // Remove has ended it by force
	Remove    Deed = "remove"      // Remove was called
	RemoveEnd Deed = "removed"     // and nothing is left
	NotEnded  Deed = "not ended"   // Remove was called and the arranged fault happened
	NotStart  Deed = "no start"    // Start has ended with an error
	Adopted   Deed = "was adopted" // an environment was put there by [Executor.Adopt]
)

// Event is one line of a fake executor's diary.
type Event struct {
	Time time.Time
	Deed Deed
	Job  string
}

// String is for the messages of failed tests.
func (e Event) String() string { return fmt.Sprintf("%s %s", e.Deed, e.Job) }
