package runtime

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"
)

// claimLimit bounds one claim. It is longer than any sensible request_timeout,
// because it only guards against a Cloud that keeps no limit of its own.
const claimLimit = 10 * time.Minute

// claim polls once and starts the job of the answer, if there is one. The poll is
// not cancelled by ctx, because its answer may be a job that no one else gets. The
// slot becomes the job's, or is given back; until the answer is there it makes
// room for another pool after a while.
func (p *Pool) claim(ctx context.Context, mine *slot) {
	begun := false
	defer func() {
		if !begun {
			mine.leave()
		}
	}()
	asking, cancel := context.WithTimeout(p.final, claimLimit)
	defer cancel()
	late := time.AfterFunc(patience, mine.lend)
	before, tuned := p.settings()
	began := time.Now()
	p.polling(began, began.Add(claimLimit))
	claim, err := p.parts.Cloud.Claim(asking)
	late.Stop()

	p.mu.Lock()
	defer p.mu.Unlock()
	p.polled, p.pollingSince = time.Now(), time.Time{}
	p.service = pause{}
	p.progress = p.polled
	p.pollAt = p.polled.Add(jitter(p.spec.Tuning.PollingInterval))
	if err != nil {
		if p.failing == nil {
			p.failingSince = began
		}
		p.failed(err)
		if closed(tuned) { // the answer is to the settings of before
			p.reconsider(before)
		}
		return
	}
	if p.failing != nil {
		var closed []any
		if p.broken {
			closed = []any{"circuit_breaker", "closed"}
		}
		p.failing, p.failingSince, p.quiet, p.broken = nil, time.Time{}, false, false
		p.log.Info("the service answers again", closed...)
	}
	p.answered = p.polled
	if claim.RetryAfter > 0 && !p.spec.Tuning.PollingOverride {
		p.service = pause{until: p.polled.Add(claim.RetryAfter), why: "the service asked for a longer wait", kind: forWish}
		p.pollAt = p.service.until
	}
	if claim.Job == nil {
		return
	}
	if p.lives[claim.Job.ID] != nil {
		p.log.Warn("the service handed out a job that runs here already; ignored", "job", claim.Job.ID)
		return
	}
	p.pollAt = p.polled // there may be more
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
	if mine.keep() {
		p.log.Info("the service's answer came late, and other jobs run in its place; the job runs beyond the limit of all pools", "job", job.ID)
	}
	p.begin(ctx, job, "", mine)
	begun = true
}

// failed notes a question for work that failed, or that the Cloud's breaker did
// not let through. The caller holds the lock.
func (p *Pool) failed(err error) {
	var wait *Pause
	errors.As(err, &wait)
	open := wait != nil && wait.Reason == BreakerOpen
	if p.broken && wait == nil { // an open breaker would have asked for another pause
		p.broken, p.quiet = false, false
		p.log.Info("the circuit breaker is closed")
	}
	level := slog.LevelWarn
	switch {
	case p.quiet:
		level = slog.LevelDebug
	case errors.Is(err, ErrUnauthorized):
		level = slog.LevelError
	}
	if open && !(p.broken && p.quiet) {
		why := wait.Err
		if why == nil {
			why = err
		}
		p.log.Warn("the circuit breaker is open: not asking for work", "until", wait.Until, "error", why)
	} else {
		p.log.Log(context.Background(), level, "ask for work", "error", err)
	}
	p.failing, p.quiet, p.broken = err, true, p.broken || open
	if wait != nil {
		p.service = pause{until: wait.Until, wish: wait.Wish, why: wait.Reason, kind: forFailure}
		if open {
			p.service.kind = forBreaker
		}
		p.pollAt = wait.Until
	}
}

// begin starts the life of a job, in an environment that exists already if id
// is not empty, and gives its slot back afterwards. The caller holds the lock.
func (p *Pool) begin(ctx context.Context, job *Job, id string, mine *slot) {
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
		mine.leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.lives, job.ID)
		if id == "" {
			p.done++ // an adopted job is not what a single run was started for
		}
		p.progress = time.Now()
		p.pollAt = p.progress // the next job may be waiting
		p.poke()
	})
}

// jitter spreads an interval by a tenth to either side, so that many agents
// that started together do not ask together.
func jitter(interval time.Duration) time.Duration {
	return interval - interval/10 + rand.N(interval/5+1)
}
