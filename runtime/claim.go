package runtime

import (
	"context"
	"time"

	"github.com/cmwa-project/cmwa/runtime/killpoint"
)

// claimLimit bounds one claim. It is longer than any useful request_timeout, because it
// only guards against a Cloud without a timeout.
const claimLimit = 10 * time.Minute

// polls is the state of a pool's polls.
type polls struct {
	next     NextPoll // when the next poll is allowed
	outdated bool     // next was set during the poll that is under way, so the time in its result is ignored

	since        time.Time // start of the poll that is under way; zero without one
	answered     time.Time // time of the last response to a poll, or to a call about a job
	failing      error     // reason why the last poll failed; nil if it succeeded
	failingSince time.Time // start of the first poll of this series of failures
}

// end records the result of the poll that is under way.
func (p *polls) end(err error) {
	switch {
	case err == nil:
		p.answered, p.failingSince = time.Now(), time.Time{}
	case p.failing == nil:
		p.failingSince = p.since
	}
	p.failing, p.since = err, time.Time{}
}

// dueNow makes the next poll due at once, unless next has a reason to wait.
func (p *polls) dueNow() {
	if p.next.Reason == "" {
		p.next.At = time.Time{}
	}
}

// claim polls once and starts the claimed job, if there is one.
//
//  1. The end of ctx does not cancel the poll, because the response may be a job that the
//     service gives to no other agent.
//  2. Changes of the settings during the poll apply to its result.
//  3. The job takes the slot, or the slot is released. After slotGrace without a response,
//     another pool may use the slot.
func (p *Pool) claim(ctx context.Context, granted *slot) {
	started := false
	defer func() {
		if !started {
			granted.release()
		}
	}()

	// 1. Poll.
	limited, cancel := context.WithTimeout(p.finalCtx, claimLimit)
	defer cancel()
	slow := time.AfterFunc(slotGrace, granted.share)
	before, tuned, ok := p.startPoll()
	if !ok {
		slow.Stop()
		return
	}
	claim, err := p.parts.Cloud.Claim(limited)
	slow.Stop()
	p.parts.Recorder.Poll(before.Name, pollResult(claim, err))

	// 2. Record the result.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polls.end(err)
	if p.polls.next = claim.Next; p.polls.outdated {
		p.polls.next = p.parts.Cloud.Tune(p.spec.Tuning)
	}
	if err != nil || claim.Job == nil {
		return
	}
	job := claim.Job
	p.complement(job, before, closed(tuned))
	if running := p.runs[job.ID]; running != nil {
		if running.offer(job) {
			return
		}
		p.log.Warn("service returned a job that this agent already runs: ignored", "job", job.ID)
		if p.polls.next.Reason == "" { // the Cloud allows a poll at once after a job
			p.polls.next.At = time.Now().Add(p.spec.Tuning.PollingInterval)
		}
		return
	}

	// 3. Start the job.
	killpoint.Hit(killpoint.PollAnswered)
	p.parts.Recorder.JobClaimed(job.PoolName, job.Kind)
	p.log.Info("job claimed", "job", job.ID, string(job.Kind), job.WorkflowID)
	if granted.keep() {
		p.log.Info("the response to a poll was late, and another pool uses the slot: "+
			"this job exceeds the limit of all pools", "job", job.ID)
	}
	p.startRun(ctx, p.newRun(job, time.Now()), granted)
	started = true
}

// pollResult returns the result of a poll.
func pollResult(claim Claim, err error) PollResult {
	switch {
	case err != nil:
		return PollFailed
	case claim.Job == nil:
		return PollEmpty
	}
	return PollClaimed
}

// complement fills in the fields of a job about its pool and agent. If the settings have
// changed since the poll began, the job gets the certificates and the settings for instances with
// which the executor was checked. The caller holds the lock.
func (p *Pool) complement(job *Job, checked PoolSpec, changed bool) {
	job.Pool, job.PoolName, job.Identity = p.spec.Key(), p.spec.Name, p.spec.Identity
	job.Agent = p.parts.Agent
	job.Generation = p.spec.Generation
	job.Service = p.spec.Identity.Service
	job.Tuning = p.spec.Tuning
	if changed {
		job.Tuning.Instance, job.Tuning.CA = checked.Tuning.Instance, checked.Tuning.CA
	}
}

// startPoll records that a poll begins, and returns the spec in force, with a channel
// that is closed when the spec changes. It reports false if a single run must not poll, because
// leased work runs or is being acquired.
func (p *Pool) startPoll() (PoolSpec, <-chan struct{}, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spec.Tuning.SingleRun && (p.leasing.acquiring || p.leasedRuns() > 0) {
		return PoolSpec{}, nil, false
	}
	now := time.Now()
	p.polls.since, p.polls.outdated = now, false
	p.due = now.Add(claimLimit)
	return p.spec, p.tuned, true
}

// newRun returns the run of a job. The caller holds the lock.
func (p *Pool) newRun(job *Job, since time.Time) *jobRun {
	return &jobRun{
		pool: p, job: job, startedAt: since, phase: Claimed, stepEnded: make(chan struct{}),
		log: p.log.With("job", job.ID, "generation", job.Generation),
	}
}

// startRun runs a job in a goroutine and releases its slot afterwards. A job that an earlier
// run of an agent has claimed does not count as the single run. The caller holds the lock.
func (p *Pool) startRun(ctx context.Context, r *jobRun, granted *slot) {
	earlier := r.adopted || r.recovery != nil
	p.runs[r.job.ID] = r
	if p.parts.InFlight != nil {
		p.parts.InFlight(+1)
	}
	p.jobs.Go(func() {
		gone := r.runJob(ctx)
		if gone && p.parts.InFlight != nil {
			p.parts.InFlight(-1)
		}
		granted.release()
		killpoint.Hit(killpoint.SlotFreed)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.runs, r.job.ID)
		if !earlier {
			p.ended++
		}
		p.idleSince = time.Now()
		p.polls.dueNow() // the service may have the next job
		p.wake()
	})
}
