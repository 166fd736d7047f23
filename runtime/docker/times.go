package docker

import (
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Times of calls to the engine.
const (
	pingLimit  = 10 * time.Second // for a ping
	shortLimit = 30 * time.Second // for calls that an engine completes immediately
	longLimit  = 2 * time.Minute  // for calls that are slow on a busy machine: create, start, remove, copy

	cancelGrace = 30 * time.Second // how long a call that changes the engine outlives its caller's context

	helperLimit = 30 * time.Second // for a credential helper, which may use the network
	helperGrace = 2 * time.Second  // for child processes of the helper to close its output
)

// Times of a start.
const (
	defaultPullTimeout  = 3 * time.Minute        // time without progress after which a pull fails
	pullLogInterval     = 10 * time.Second       // between two log lines about the progress of a download
	flushInterval       = 3 * time.Second        // interval at which the log of a pull is sent
	flushLimit          = 10 * time.Second       // timeout for sending it, because the pull waits
	emulationWait       = time.Second            // time in which a program for another architecture fails
	handoffTimeout      = time.Minute            // for the runner to read the handoff
	defaultCloseTimeout = 100 * time.Millisecond // for the engine to close the connection afterwards
	handoffErrorPause   = 100 * time.Millisecond // between two tries of awaitEarlyExit

	// defaultHandoffErrorLimit is the time limit for all tries of awaitEarlyExit. A runner with
	// a part of the handoff ends at once; an engine that is restarted takes some seconds.
	defaultHandoffErrorLimit = 15 * time.Second

	discardLimit = time.Minute // for the cleanup after a failed start
)

// Times of volumes with a runner.
const (
	fillLimit     = 5 * time.Minute        // for filling the volume, including the wait for another agent
	loaderPoll    = 100 * time.Millisecond // interval at which a volume that another agent fills is checked
	loaderTimeout = 150 * time.Second      // a loader container older than this was abandoned
	oldVolume     = time.Hour              // unused volumes of other runners are removed from this age on
)

// Times of removals.
const (
	removeRetry  = 100 * time.Millisecond // between two calls that remove a container which ends meanwhile
	oldLoader    = 10 * time.Minute       // a loader container of this age is abandoned; longer than fillLimit
	idleVolume   = 24 * time.Hour         // an unused volume of this age is removed if no pool has its runner
	oldDirectory = 7 * 24 * time.Hour     // a directory of this age is removed if it has no container
	oldEnded     = runtime.LeftoverAge    // an ended container of another agent is removed after this time
)
