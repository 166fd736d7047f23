package kube

import (
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Times of requests to the API server. They include the time that a request waits for the
// client's rate limiter.
const (
	callLimit   = time.Minute      // of a request with a single response
	streamLimit = 30 * time.Second // until the first byte of a log

	// refusalLimit is how long a request is retried that the API server refuses because of
	// missing rights or credentials: a token may have been replaced, and an API server that
	// has just started may not have loaded all Roles.
	refusalLimit = 20 * time.Second

	identifyLimit = 15 * time.Second // timeout of one request for the agent's own Pod
	identifyRetry = 2 * time.Second  // delay after a request that was refused
	eventsLimit   = 10 * time.Second // timeout for the list of a Pod's events
)

// Times of watches.
const (
	// watchStartLimit is the timeout for the headers of a watch. Some proxies delay the
	// headers until the first event, and the API server sends a bookmark once a minute.
	watchStartLimit = 2 * time.Minute

	// watchOvertime is added to the time after which the API server ends a watch. After
	// both times, the client ends the watch. Otherwise a watch whose server is lost behind
	// a proxy would stay open forever.
	watchOvertime = 30 * time.Second

	syncLimit  = 30 * time.Second       // for a call to wait for the first list
	newerLimit = 200 * time.Millisecond // for awaitNewer after a conflict: the watch is some milliseconds late
	idleWait   = 24 * time.Hour         // until the next check if only a change of the Pod matters
)

// Times of a start.
const (
	// StartTimeout is the default of kubernetes.start_timeout: how long a Pod may take to start.
	StartTimeout = 10 * time.Minute

	// ImagePullTimeout is the default of kubernetes.image_pull_timeout: for how long the pull of an
	// image may fail.
	ImagePullTimeout = 10 * time.Minute

	silenceLimit = 30 * time.Second // after which step 0 has a line about a Pod that does not change and has no reason

	// settleTime is the time after which a runner reads a replaced handoff, or the watch shows that it
	// has started: a kubelet refreshes files, and reports changes, within about a second.
	settleTime = 3 * time.Second

	dryRunCacheTime = time.Minute // how long a successful dry run stays valid

	// outageGrace is how long the watch may take to show a started Pod after an outage that was longer
	// than the start timeout.
	outageGrace = 30 * time.Second

	stuckLimit   = 2 * time.Minute                // a start with a permanent problem fails after this time
	minSendTime  = 50 * time.Second               // for the handoff, even if the start has less time left
	maxSendTime  = 9*time.Minute + 30*time.Second // for the handoff, even if the start has more time left
	resendLimit  = 10 * time.Second               // for a handoff with more lines, after a first handoff has arrived
	discardLimit = time.Minute                    // timeout for the removal of a failed start
)

// Times of a Pod's end.
const (
	nodeLostLimit = 10 * time.Minute // a node without reports for this time is lost; equal to runtime.HeartbeatLimit

	// deadlineMargin is a part of the active deadline of the Pod, which is the sum of the job's
	// timeout, the start timeout and this margin. The runner enforces the job's timeout, and
	// the agent enforces a later one. The deadline of the Pod ends a job that neither runner
	// nor agent ends.
	deadlineMargin = 10 * time.Minute

	// endReasonLimit is how long Wait waits for the reason of an end. The phase and the reason of
	// a Pod, such as Evicted, follow the end of its container by up to 2.5 seconds.
	endReasonLimit = 4 * time.Second

	handoffRemoveLimit = 10 * time.Second // how long the removal of a handoff may delay the progress of its job
	overdueLimit       = 60 * time.Second // added to the grace period; then the Pod is deleted with a period of zero
	shownPollInterval  = 10 * time.Second // until the first request for a deleted Pod that the watch still shows
)

// Times of leftovers.
const (
	keepTime = 24 * time.Hour // how long the Pod of a failed job is kept
	// How long a list of records stays valid, unless an agent of the group ends: if the agents are
	// watched, and if not.
	recordListWatched  = 5 * time.Minute
	recordListInterval = time.Minute

	ownerCacheTime = 10 * time.Second // how long an owner that was found counts as existing, for all pools

	// overdueOwnerLimit is how long the Pod of an agent may exist after the end of its grace period.
	// Then its node has failed, and other agents adopt its jobs.
	overdueOwnerLimit = 10 * time.Minute

	// sweepMargin is the time between annotationNeeded and the sweep of an object: a handoff
	// may be sent up to one minute after the start timeout.
	sweepMargin = 5 * time.Minute
)

// createBackoff is for requests that change an object.
var createBackoff = runtime.Backoff{First: 500 * time.Millisecond, Max: 10 * time.Second}

// deletionBackoff is for requests for a deleted Pod while the watch does not show that it is gone. In
// an outage, each removal waits so.
var deletionBackoff = runtime.Backoff{First: time.Second, Max: 15 * time.Second}

// refusedBackoff is for dry runs that the cluster has refused.
var refusedBackoff = runtime.Backoff{First: 2 * time.Second, Max: 24 * time.Second}

// eventsBackoff is for requests for the events of a Pod that does not change.
var eventsBackoff = runtime.Backoff{First: 4 * time.Second, Max: 30 * time.Second}

// watchBackoff is for watches. Its first delay is also the shortest time between two watches.
var watchBackoff = runtime.Backoff{First: time.Second, Max: 10 * time.Second}
