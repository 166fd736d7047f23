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

// Call names one of the four calls of a [runtime.Cloud] to its service.
type Call string

// The calls.
const (
	Claim  Call = "claim"
	Define Call = "definition"
	Wanted Call = "wanted"
	Report Call = "report"
)

// Cloud is a fake of [runtime.Cloud] with state: a queue of jobs, verdicts,
// what was reported, and faults that a test has arranged. It takes no time of
// its own. Methods are safe for concurrent use.
type Cloud struct {
	mu         sync.Mutex
	queue      []string
	jobs       map[string]*order
	retryAfter time.Duration
	interval   time.Duration
	polled     time.Time        // end of the last Claim
	hold       runtime.NextPoll // of the test, or for a Retry-After; may be past
	gaveJob    bool             // the last Claim did
	faults     map[Call][]fault
	calls      map[Call][]time.Time
	lost       []string
}

// order is a job as the service knows it.
type order struct {
	job        runtime.Job
	definition runtime.Definition
	verdict    runtime.Verdict
	claimed    bool
	reports    []runtime.Report
}

// fault is what happens to the next call of its kind.
type fault struct {
	err     error
	release <-chan struct{} // nil: at once
}

// NewCloud makes a service with an empty queue.
func NewCloud() *Cloud {
	return &Cloud{
		jobs:   map[string]*order{},
		faults: map[Call][]fault{},
		calls:  map[Call][]time.Time{},
	}
}

// Queue adds deployments with these ids to the end of the queue, each with one
// step.
func (c *Cloud) Queue(jobIDs ...string) {
	for _, id := range jobIDs {
		c.Add(runtime.Job{
			ID:      id,
			Kind:    runtime.Deployment,
			Subject: "deployment-of-" + id,
			Token:   secret.New("token-of-" + id),
		}, Definition("echo "+id))
	}
}

// Add adds one job with its definition to the end of the queue.
func (c *Cloud) Add(job runtime.Job, definition runtime.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, job.ID)
	c.jobs[job.ID] = &order{job: job, definition: definition, verdict: runtime.CarryOn}
}

// Know makes a job known that was claimed before the test began, by an agent
// that has since gone.
func (c *Cloud) Know(job runtime.Job, definition runtime.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs[job.ID] = &order{job: job, definition: definition, verdict: runtime.CarryOn, claimed: true}
}

// Answer sets what Wanted says of a job from now on. With [runtime.Gone] its
// definition and reports are refused with ErrGone as well.
func (c *Cloud) Answer(jobID string, verdict runtime.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[jobID]; ok {
		o.verdict = verdict
	}
}

// RetryAfter sets for how long every later Claim that succeeds holds the next poll.
func (c *Cloud) RetryAfter(wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retryAfter = wait
}

// Hold makes Claim and Tune answer with this hold until its end. One that is past, or
// zero, ends the hold in force.
func (c *Cloud) Hold(next runtime.NextPoll) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = next
}

// Tune keeps the polling interval.
func (c *Cloud) Tune(tuning runtime.Tuning) runtime.NextPoll {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interval = tuning.PollingInterval
	return c.next()
}

// next returns the hold in force, or else the end of the polling interval; after a
// job, at once. The caller holds the lock.
func (c *Cloud) next() runtime.NextPoll {
	switch {
	case c.hold.At.After(time.Now()):
		return c.hold
	case c.polled.IsZero(), c.gaveJob:
		return runtime.NextPoll{}
	}
	return runtime.NextPoll{At: c.polled.Add(c.interval)}
}

// Fail makes the next times calls of a kind fail with err, behind the faults
// already arranged.
func (c *Cloud) Fail(call Call, times int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range times {
		c.faults[call] = append(c.faults[call], fault{err: err})
	}
}

// Hang makes the next call of a kind block until release is called, and then go
// on as if nothing had been. A caller that gives up earlier gets the cause.
func (c *Cloud) Hang(call Call) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	released := make(chan struct{})
	c.faults[call] = append(c.faults[call], fault{release: released})
	return sync.OnceFunc(func() { close(released) })
}

// Calls returns when calls of a kind began, in order.
func (c *Cloud) Calls(call Call) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls[call])
}

// Queued returns the jobs that nobody has claimed, in order.
func (c *Cloud) Queued() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.queue)
}

// Lost returns the jobs that were given away in an answer that the caller did
// not wait for. A pool must never lose one.
func (c *Cloud) Lost() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lost)
}

// Reports returns what the agent has reported of a job, in order, refused
// reports not included.
func (c *Cloud) Reports(jobID string) []runtime.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[jobID]; ok {
		return slices.Clone(o.reports)
	}
	return nil
}

// Step returns the last status that the agent has reported of a step, and the
// log that it has told of it.
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

// Claim gives out the job at the head of the queue, or none.
func (c *Cloud) Claim(ctx context.Context) (claim runtime.Claim, err error) {
	err = c.meet(ctx, Claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		claim.Job, err = c.take(ctx)
	}
	c.polled, c.gaveJob = time.Now(), claim.Job != nil
	if err == nil && c.retryAfter > 0 {
		c.hold = runtime.NextPoll{At: c.polled.Add(c.retryAfter), Reason: "the service asked for a longer wait"}
	}
	claim.Next = c.next()
	return claim, err
}

// take takes the job at the head of the queue; nil if there is none. The caller holds
// the lock.
func (c *Cloud) take(ctx context.Context) (*runtime.Job, error) {
	if len(c.queue) == 0 {
		return nil, nil
	}
	id := c.queue[0]
	c.queue = c.queue[1:]
	c.jobs[id].claimed = true
	if ctx.Err() != nil { // given away all the same: that is what a lost answer is
		c.lost = append(c.lost, id)
		return nil, context.Cause(ctx)
	}
	job := c.jobs[id].job
	return &job, nil
}

// Definition returns what the job was added with.
func (c *Cloud) Definition(ctx context.Context, job *runtime.Job) (runtime.Definition, error) {
	o, err := c.find(ctx, Define, job)
	if err != nil {
		return runtime.Definition{}, err
	}
	return o.definition, nil
}

// Wanted returns what [Cloud.Answer] has set, at first CarryOn. Of a job that
// it never gave out it says Gone.
func (c *Cloud) Wanted(ctx context.Context, job *runtime.Job) (runtime.Verdict, error) {
	if err := c.meet(ctx, Wanted); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, ok := c.jobs[job.ID]; ok {
		return o.verdict, nil
	}
	return runtime.Gone, nil
}

// Report keeps the report.
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

// find meets the faults of a call about a job, and then finds the job.
func (c *Cloud) find(ctx context.Context, call Call, job *runtime.Job) (*order, error) {
	if err := c.meet(ctx, call); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.jobs[job.ID]
	switch {
	case !ok || o.verdict == runtime.Gone:
		return nil, fmt.Errorf("%s of %s: %w", call, job.ID, runtime.ErrGone)
	case !o.claimed:
		return nil, fmt.Errorf("%s of %s: nobody has claimed it", call, job.ID)
	case job.Token != o.job.Token:
		return nil, fmt.Errorf("%s of %s: %w", call, job.ID, runtime.ErrUnauthorized)
	}
	return o, nil
}

// meet records a call and lets the next fault of its kind happen.
func (c *Cloud) meet(ctx context.Context, call Call) error {
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
	if call != Claim && ctx.Err() != nil { // a lost claim is Claim's own matter
		return context.Cause(ctx)
	}
	return next.err
}
