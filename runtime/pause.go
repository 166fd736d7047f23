package runtime

import "time"

// pause is a period without polling.
type pause struct {
	until time.Time
	wish  time.Time // of the service, in a pause for a failure; zero is none
	why   string
	kind  pauseKind
}

// pauseKind is what a pause is for, and so what ends it early.
type pauseKind int

const (
	forEngine  pauseKind = iota // after failed starts: see retryStart
	forWish                     // the service's, with an answer: polling_interval_override ends it
	forFailure                  // before a repetition: other credentials end it, and other certificates unless the service wishes it
	forBreaker                  // the Cloud keeps this one itself: any edit ends it, as asking again tells whether it still holds
)

// reconsider sets the next question anew after settings have changed from
// before. The caller holds the lock.
func (p *Pool) reconsider(before Tuning) {
	now, tuning := time.Now(), p.spec.Tuning
	other := p.failing != nil && !before.SameCredentials(tuning)
	cure := other || p.failing != nil && before.CA != tuning.CA
	if cure {
		p.quiet = false
	}
	breaker := p.service.kind == forBreaker
	switch p.service.kind {
	case forBreaker:
		p.service = pause{}
	case forFailure:
		if left := p.service; cure {
			p.service = pause{}
			if !other && now.Before(left.wish) {
				left.until = left.wish
				p.service = left
			}
		}
	case forWish:
		if tuning.PollingOverride {
			p.service = pause{}
		}
	}
	switch {
	case cure, breaker:
		p.pollAt = now // but for the pause
	case now.Before(p.service.until): // as it was
	case !p.polled.IsZero():
		p.pollAt = p.polled.Add(jitter(tuning.PollingInterval))
	}
}

// paused returns the pause that is the last to end, which may be past. The caller
// holds the lock.
func (p *Pool) paused() pause {
	if p.engine.until.After(p.service.until) {
		return p.engine
	}
	return p.service
}

// Retrier is an optional interface of a [Cloud], and of what makes use of one, that
// waits after failures.
type Retrier interface {
	// Retry ends such a wait with one more call. It returns at once.
	Retry()
}

// Retry ends the wait after a failed poll: the next one is made now, and if it fails,
// the wait begins again. A wait that the service asked for stays, and so does the
// interval after a poll that did not fail.
func (p *Pool) Retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cloud, ok := p.parts.Cloud.(Retrier); ok {
		cloud.Retry()
	}
	if p.failing == nil {
		return
	}
	now := time.Now()
	left := p.service
	if p.service = (pause{}); now.Before(left.wish) {
		left.until = left.wish
		p.service = left
	}
	p.quiet, p.pollAt = false, now
	p.poke()
}
