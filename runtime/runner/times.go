package runner

import (
	"time"
)

// Times of calls. The contexts of the calls limit the number of retries.
const (
	requestTimeout     = 30 * time.Second
	retryWait          = 500 * time.Millisecond // before the first retry; doubles with each
	retryMaxWait       = 15 * time.Second
	statusTimeout      = 15 * time.Minute // for the report of one status
	finalReportTimeout = time.Minute      // for the last reports, after a stop request and the end of the step
)

// Times of the log. A line after a silence is sent almost immediately; lines in quick succession
// are collected.
const (
	batchDelay        = 20 * time.Millisecond  // wait after the first line of a batch
	batchInterval     = 250 * time.Millisecond // between the starts of two batches, unless the next is full
	stallLimit        = 10 * time.Second       // time without progress after which the oldest lines are dropped
	lineRetryDelay    = time.Second            // before a rejected line is sent again
	unknownRetryDelay = 5 * time.Second        // before a batch is sent again that the client did not retry

	// flushTimeout is the time without progress after which the remaining lines of an ended
	// step are dropped: problems with logs never fail a job.
	flushTimeout = 5 * time.Minute
)

// Times of the end of a step.
const (
	quietTime     = 100 * time.Millisecond // silence after which the output of other processes is not read any more
	maxLingerTime = 2 * time.Second        // the same, also without silence
	groupPoll     = 20 * time.Millisecond  // interval at which a process group that is stopped is checked
	scanPoll      = 200 * time.Millisecond // interval at which the step's processes are listed in the first stage

	// startupTime is how long a process that starts during the stop is not interrupted: pulumi
	// does not handle signals in the first moments after its start, and a SIGINT would kill it.
	startupTime = time.Second

	remainingGrace = 2 * time.Second  // for the other processes to end after all interrupted ones have ended
	killTimeout    = 10 * time.Second // for a killed program to end
)

// Times of the end of a job.
const (
	agentYield = 5 * time.Second // for the agent to log the reason of its request

	// progressFlush is how long the runner waits after the end of the job until the agent has
	// read the last line of progress. The agent waits for the end of the stream equally long.
	progressFlush = 5 * time.Second
)
