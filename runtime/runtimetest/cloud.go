package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Call names a call of a [runtime.Cloud] or [runtime.Leaser] to its service.
type Call string

// The calls.
const (
	Claim     Call = "claim"
	Define    Call = "definition"
	JobStatus Call = "status"
	Report    Call = "report"
	Acquire   Call = "acquire"
	Renew     Call = "renew"
	Complete  Call = "complete"
)

// Cloud is a fake of [runtime.Cloud] with state: a queue of jobs, their statuses and
// reports, and the faults that a test has arranged. Its calls take no time. Methods are
// safe for concurrent use.
type Cloud struct {
	mu         sync.Mutex
	queue      []string
	jobs       map[string]*order
	retryAfter time.Duration
	interval   time.Duration
	polled     time.Time        // end of the last Claim
	hold       runtime.NextPoll // set by Hold or for a Retry-After; may be past
	claimed    bool             // the last Claim returned a job
	faults     map[Call][]fault
	calls      map[Call][]time.Time
	lost       []string
}

// order is a job at the service.
type order struct {
	job        runtime.Job
	definition runtime.Definition
	status     runtime.JobStatus
	claimed    bool
	reports    []runtime.Report
}

// fault is the result of one later call.
type fault struct {
	err     error
	release <-chan struct{} // closed when the call may return; nil: the call returns at once
}

// NewCloud returns a service with an empty queue.
func NewCloud() *Cloud {
	return &Cloud{
		jobs:   map[string]*order{},
		faults: map[Call][]fault{},
		calls:  map[Call][]time.Time{},
	}
}

// Queue adds deployments with these ids to the end of the queue, each with one step after
// step 0.
func (c *Cloud) Queue(jobIDs ...string) {
	for _, id := range jobIDs {
		c.Add(runtime.Job{
			ID:         id,
			Kind:       runtime.Deployment,
			WorkflowID: "deployment-of-" + id,
			Token:      secret.New("token-of-" + id),
		}, Definition("echo "+id))
	}
}

// Add adds one job with its definition to the end of the queue.
func (c *Cloud) Add(job runtime.Job, definition runtime.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, job.ID)
	c.jobs[job.ID] = &order{job: job, definition: definition, status: runtime.Continue}
}

// AddClaimed adds a job that was claimed before the test by an agent that no longer
// exists.
func (c *Cloud) AddClaimed(job runtime.Job, definition runtime.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs[job.ID] = &order{job: job, definition: definition, status: runtime.Continue, claimed: true}
}

// SetJobStatus sets what JobStatus returns for a job from now on. With [runtime.Gone], the
// calls Definition and Report also fail for this job, with ErrGone.
func (c *Cloud) SetJobStatus(jobID string, status runtime.JobStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[jobID]; ok {
		o.status = status
	}
}

// RetryAfter makes each later Claim that succeeds delay the next poll by this time.
func (c *Cloud) RetryAfter(wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retryAfter = wait
}

// Hold makes Claim and Tune return this hold until it ends. It replaces an earlier hold. A
// hold that is past or zero only ends the earlier one.
func (c *Cloud) Hold(next runtime.NextPoll) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = next
}

// Tune sets the polling interval.
func (c *Cloud) Tune(tuning runtime.Tuning) runtime.NextPoll {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interval = tuning.PollingInterval
	return c.next()
}

// Retry changes nothing.
func (c *Cloud) Retry() runtime.NextPoll {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next()
}

// Health returns the zero value.
func (c *Cloud) Health() runtime.ServiceHealth { return runtime.ServiceHealth{} }

// next returns the hold in force, or else the end of the polling interval. Before the first
// poll, and after a poll that returned a job, the next poll is allowed at once. The caller
// holds the lock.
func (c *Cloud) next() runtime.NextPoll {
	switch {
	case c.hold.At.After(time.Now()):
		return c.hold
	case c.polled.IsZero(), c.claimed:
		return runtime.NextPoll{}
	}
	return runtime.NextPoll{At: c.polled.Add(c.interval)}
}

// Fail makes calls of a kind fail with err, and times is their number. These are the next calls
// after those for which a fault is already arranged.
func (c *Cloud) Fail(call Call, times int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range times {
		c.faults[call] = append(c.faults[call], fault{err: err})
	}
}

// Hang makes the next call of a kind block until release is called, and then succeed. If the
// context of the call ends earlier, the call returns the cause.
func (c *Cloud) Hang(call Call) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	released := make(chan struct{})
	c.faults[call] = append(c.faults[call], fault{release: released})
	return sync.OnceFunc(func() { close(released) })
}

// Calls returns the start times of calls of a kind, in order.
func (c *Cloud) Calls(call Call) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls[call])
}

// Queued returns the jobs that are not claimed, in order.
func (c *Cloud) Queued() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.queue)
}

// Lost returns the jobs of claims whose context ended before the response. A pool must never
// lose a job.
func (c *Cloud) Lost() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lost)
}

// Reports returns the accepted reports of the agent about a job, in order.
func (c *Cloud) Reports(jobID string) []runtime.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[jobID]; ok {
		return slices.Clone(o.reports)
	}
	return nil
}

// Step returns the last status and the log of a step, as the agent has reported them.
func (c *Cloud) Step(jobID string, step int) (status runtime.Status, log string) {
	status = runtime.NotStarted
	var lines []runtime.Line
	for _, report := range c.Reports(jobID) {
		if report.Step != step {
			continue
		}
		if len(report.Lines) > 0 {
			lines = append(lines[:min(report.Offset, len(lines))], report.Lines...)
		}
		if report.Status != "" {
			status = report.Status
		}
	}
	for _, line := range lines {
		log += line.Text
	}
	return status, log
}

// Claim hands out the job at the head of the queue, if there is one.
func (c *Cloud) Claim(ctx context.Context) (claim runtime.Claim, err error) {
	err = c.applyFault(ctx, Claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		claim.Job, err = c.take(ctx)
	}
	c.polled, c.claimed = time.Now(), claim.Job != nil
	if err == nil && c.retryAfter > 0 {
		c.hold = runtime.NextPoll{At: c.polled.Add(c.retryAfter), Reason: "Retry-After of the service"}
	}
	claim.Next = c.next()
	return claim, err
}

// take removes and returns the job at the head of the queue; nil if the queue is empty. The
// caller holds the lock.
func (c *Cloud) take(ctx context.Context) (*runtime.Job, error) {
	if len(c.queue) == 0 {
		return nil, nil
	}
	id := c.queue[0]
	c.queue = c.queue[1:]
	c.jobs[id].claimed = true
	if ctx.Err() != nil { // the response is lost, and the job with it
		c.lost = append(c.lost, id)
		return nil, context.Cause(ctx)
	}
	job := c.jobs[id].job
	return &job, nil
}

// Definition returns the definition with which the job was added.
func (c *Cloud) Definition(ctx context.Context, job *runtime.Job) (runtime.Definition, error) {
	o, err := c.find(ctx, Define, job)
	if err != nil {
		return runtime.Definition{}, err
	}
	return o.definition, nil
}

// JobStatus returns the status set by [Cloud.SetJobStatus], or Continue. It returns Gone
// for a job that the service does not have.
func (c *Cloud) JobStatus(ctx context.Context, job *runtime.Job) (runtime.JobStatus, error) {
	if err := c.applyFault(ctx, JobStatus); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[job.ID]; ok {
		return o.status, nil
	}
	return runtime.Gone, nil
}

// Report records the report.
func (c *Cloud) Report(ctx context.Context, job *runtime.Job, report runtime.Report) error {
	o, err := c.find(ctx, Report, job)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	report.Lines = slices.Clone(report.Lines)
	o.reports = append(o.reports, report)
	return nil
}

// find applies the faults of a call about a job, and then finds the job.
func (c *Cloud) find(ctx context.Context, call Call, job *runtime.Job) (*order, error) {
	if err := c.applyFault(ctx, call); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.jobs[job.ID]
	switch {
	case !ok || o.status == runtime.Gone:
		return nil, fmt.Errorf("%s of %s: %w", call, job.ID, runtime.ErrGone)
	case !o.claimed:
		return nil, fmt.Errorf("%s of %s: it is not claimed", call, job.ID)
	case job.Token != o.job.Token:
		return nil, fmt.Errorf("%s of %s: %w", call, job.ID, runtime.ErrUnauthorized)
	}
	return o, nil
}

// applyFault records a call and applies the next fault of its kind.
func (c *Cloud) applyFault(ctx context.Context, call Call) error {
	c.mu.Lock()
	c.calls[call] = append(c.calls[call], time.Now())
	var next fault
	if arranged := c.faults[call]; len(arranged) > 0 {
		next, c.faults[call] = arranged[0], arranged[1:]
	}
	c.mu.Unlock()
	if next.release != nil {
		select {
		case <-next.release:
		case <-ctx.Done():
		}
	}
	if call != Claim && ctx.Err() != nil { // Claim handles a lost response itself
		return context.Cause(ctx)
	}
	return next.err
}
