package pool

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// polls is the state of a pool's polls.
type polls struct {
	next     runtime.NextPoll // when the next poll is allowed
	outdated bool             // next was set during the poll that is under way, so the time in its result is ignored

	answered     time.Time // time of the last response to a poll, or to a call about a job
	failing      error     // reason why the last poll failed; nil if it succeeded
	failingSince time.Time // start of the first poll of this series of failures
}

// end records the result of a poll.
func (p *polls) end(since time.Time, err error) {
	switch {
	case err == nil:
		p.answered, p.failingSince = time.Now(), time.Time{}
	case p.failing == nil:
		p.failingSince = since
	}
	p.failing = err
}

// dueNow makes the next poll due at once, unless next has a reason to wait.
func (p *polls) dueNow() {
	if p.next.Reason == "" {
		p.next.At = time.Time{}
	}
}

// deployments is the source of jobs that the service gives to one agent only.
type deployments struct{ pool *Pool }

func (d *deployments) limit() time.Duration { return claimLimit }

func (d *deployments) room() int {
	if !d.pool.spec.Tuning.ClaimsDeployments() {
		return 0
	}
	room := d.pool.spec.Tuning.MaxJobs
	for _, r := range d.pool.runs {
		if !r.unnamed && !r.job.Kind.Leased() {
			room--
		}
	}
	return room
}

func (d *deployments) next() runtime.NextPoll { return d.pool.polls.next }

func (d *deployments) claim(ctx context.Context) (runtime.Claim, error) {
	d.pool.mu.Lock()
	d.pool.polls.outdated = false
	name := d.pool.spec.Name
	d.pool.mu.Unlock()
	claim, err := d.pool.parts.Cloud.Claim(ctx)
	d.pool.parts.Metrics.Poll(name, pollResult(claim, err))
	return claim, err
}

func (d *deployments) record(since time.Time, claim runtime.Claim, err error) {
	p := d.pool
	p.polls.end(since, err)
	if p.polls.next = claim.Next; p.polls.outdated {
		p.polls.next = p.parts.Cloud.Tune(p.spec.Tuning)
	}
}

// accept offers a job that the agent runs already to its run, which may have lost its tokens in a
// restart. See [jobRun.offer].
func (d *deployments) accept(_ context.Context, r *jobRun) bool {
	p := d.pool
	running := p.runs[r.job.ID]
	switch {
	case running == nil:
		killpoint.Hit(killpoint.PollAnswered)
		r.log().Info("job claimed")
		return true
	case running.offer(r.job):
		return false
	}
	r.log().Warn("service returned a job that this agent already runs: ignored")
	if p.polls.next.Reason == "" { // the Cloud allows a poll at once after a job
		p.polls.next.At = time.Now().Add(p.spec.Tuning.PollingInterval)
	}
	return false
}

// pollResult returns the result of a poll.
func pollResult(claim runtime.Claim, err error) runtime.PollResult {
	switch {
	case err != nil:
		return runtime.PollFailed
	case claim.Job == nil:
		return runtime.PollEmpty
	}
	return runtime.PollClaimed
}

// newRun returns the run of a job, and fills in the fields of the job about its pool and agent. The
// caller holds the lock.
func (p *Pool) newRun(job *runtime.Job, since time.Time) *jobRun {
	job.Pool, job.PoolName, job.Identity = p.spec.Key(), p.spec.Name, p.spec.Identity
	job.Agent, job.Service, job.Tuning = p.parts.Agent, p.spec.Identity.Service, p.spec.Tuning
	r := &jobRun{pool: p, job: job, since: since, phase: runtime.Claimed, stepEnded: make(chan struct{})}
	r.operator, r.stopJob = context.WithCancelCause(context.Background())
	r.name()
	return r
}

// startRun runs a job in a goroutine and releases its slot afterwards, if it has one. A job that an earlier
// run of an agent has claimed does not count as the single run. The caller holds the lock.
func (p *Pool) startRun(ctx context.Context, r *jobRun, granted *slot) {
	earlier := r.inherited || r.recovery != nil
	p.runs[r.job.ID] = r
	p.jobs.Go(func() {
		r.runJob(ctx)
		if granted != nil {
			granted.release()
		}
		if tracer := p.parts.Tracer; tracer != nil {
			tracer.Trace(r.job, r.state(), r.steps, r.result.outcome) // no goroutine of the job runs any more
		}
		killpoint.Hit(killpoint.SlotFreed)
		p.endRun(r, earlier)
	})
}

// endRun removes a run that has ended. Earlier is false if it counts as the single run.
func (p *Pool) endRun(r *jobRun, earlier bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.runs, r.job.ID)
	if !earlier {
		p.single.ended++
	}
	p.single.idleSince = time.Now()
	p.polls.dueNow() // the service may have the next job
	p.jobEnded = true
	p.wake()
}
