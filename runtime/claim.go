package runtime

import (
	"context"
	"time"
)

// claimLimit bounds one claim. It is longer than any sensible request_timeout,
// because it only guards against a Cloud that keeps no limit of its own.
const claimLimit = 10 * time.Minute

// polls is what a pool knows of its polls.
type polls struct {
	next     NextPoll // when the next one is allowed
	outdated bool     // next was set while a poll is under way, whose own answer may be older

	since        time.Time // start of the poll that is under way; zero if none is
	answered     time.Time // when the service last answered a poll or a call about a job
	failing      error     // why the last poll failed; nil if it did not
	failingSince time.Time // start of the first poll of this series of failures
}

// end notes the outcome of the poll that is under way.
func (p *polls) end(err error) {
	switch {
	case err == nil:
		p.answered, p.failingSince = time.Now(), time.Time{}
	case p.failing == nil:
		p.failingSince = p.since
	}
	p.failing, p.since = err, time.Time{}
}

// soon makes the next poll due at once, unless it is held.
func (p *polls) soon() {
	if p.next.Reason == "" {
		p.next.At = time.Time{}
	}
}

// claim polls once and starts the job of the answer, if there is one. The poll is
// not cancelled by ctx, because its answer may be a job that no one else gets. The
// slot becomes the job's, or is given back; until the answer is there it makes
// room for another pool after a while.
func (p *Pool) claim(ctx context.Context, granted *slot) {
	started := false
	defer func() {
		if !started {
			granted.leave()
		}
	}()

	// Poll.
	limited, cancel := context.WithTimeout(p.final, claimLimit)
	defer cancel()
	slow := time.AfterFunc(patience, granted.lend)
	before, tuned := p.startPoll()
	claim, err := p.parts.Cloud.Claim(limited)
	slow.Stop()

	// Note the outcome. What was changed during the poll counts.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polls.end(err)
	if p.polls.next = claim.Next; p.polls.outdated {
		p.polls.next = p.parts.Cloud.Tune(p.spec.Tuning)
	}
	switch {
	case err != nil, claim.Job == nil:
		return
	case p.lives[claim.Job.ID] != nil:
		p.log.Warn("service handed out a job that is running here; ignored", "job", claim.Job.ID)
		if p.polls.next.Reason == "" { // the Cloud allows a poll at once after a job
			p.polls.next.At = time.Now().Add(p.spec.Tuning.PollingInterval)
		}
		return
	}

	// Start the job.
	job := claim.Job
	job.Pool, job.PoolName, job.Identity = p.spec.Key(), p.spec.Name, p.spec.Identity
	job.Agent = p.parts.Agent
	job.Generation = p.spec.Generation
	job.Service = p.spec.Identity.Service
	job.Tuning = p.spec.Tuning
	if closed(tuned) { // the executor was checked under the settings of before
		job.Tuning.Place, job.Tuning.CA = before.Place, before.CA
	}
	p.log.Info("job claimed", "job", job.ID, string(job.Kind), job.Subject)
	if granted.keep() {
		p.log.Info("poll was answered late and its slot is used by another pool; "+
			"the job runs beyond the limit of all pools", "job", job.ID)
	}
	p.begin(ctx, job, "", granted)
	started = true
}

// startPoll notes that a poll begins, and returns the settings in force, with a
// channel that is closed when there are others.
func (p *Pool) startPoll() (Tuning, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.polls.since, p.polls.outdated = now, false
	p.due = now.Add(claimLimit)
	return p.spec.Tuning, p.tuned
}

// begin starts the life of a job, in an environment that exists already if id
// is not empty, and gives its slot back afterwards. The caller holds the lock.
func (p *Pool) begin(ctx context.Context, job *Job, id string, granted *slot) {
	l := &life{
		pool: p, job: job, id: id, adopted: id != "", past: id != "", since: time.Now(), phase: Claimed,
		log: p.log.With("job", job.ID, "generation", job.Generation),
	}
	p.lives[job.ID] = l
	if p.parts.InFlight != nil {
		p.parts.InFlight(+1)
	}
	p.jobs.Go(func() {
		gone := l.run(ctx)
		if gone && p.parts.InFlight != nil {
			p.parts.InFlight(-1)
		}
		granted.leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.lives, job.ID)
		if id == "" {
			p.done++ // an adopted job is not what a single run was started for
		}
		p.polls.soon() // the next job may be waiting
		p.poke()
	})
}
