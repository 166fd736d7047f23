package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Leases is a [Cloud] whose service also leases work. Methods are safe for concurrent use.
type Leases struct {
	*Cloud
	Span time.Duration // of a lease; not changed after the start

	mu        sync.Mutex
	tuning    runtime.Tuning
	polled    time.Time
	waiting   []leasedWork
	held      map[string]*heldLease // by id of the lease; also leases that have ended
	unhealthy bool                  // Acquire, Renew and Complete fail
	none      bool                  // the service has answered that it leases no work
	slow      time.Duration         // time from the renewal at the service to the return of Renew
}

type leasedWork struct {
	job  string
	kind runtime.Kind
}

type heldLease struct {
	job     string
	expires time.Time
	lost    bool
	result  runtime.LeaseResult
	renewed []time.Time
}

// NewLeases returns a service without work, with leases of a minute.
func NewLeases() *Leases {
	return &Leases{Cloud: NewCloud(), Span: time.Minute, held: map[string]*heldLease{}}
}

// QueueLeased adds scans with these ids to the work that can be leased.
func (l *Leases) QueueLeased(jobIDs ...string) { l.QueueKind(runtime.InsightsScan, jobIDs...) }

// QueueKind adds work of a leased kind with these ids.
func (l *Leases) QueueKind(kind runtime.Kind, jobIDs ...string) {
	for _, id := range jobIDs {
		l.AddClaimed(runtime.Job{
			ID: id, Kind: kind, WorkflowID: "scan-" + id, Token: secret.New("token-of-" + id),
		}, Definition("echo "+id))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range jobIDs {
		l.waiting = append(l.waiting, leasedWork{id, kind})
	}
}

// SetUnhealthy makes all later calls about leases fail, or lets them succeed again.
func (l *Leases) SetUnhealthy(unhealthy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unhealthy = unhealthy
}

// SetNone makes the service answer that it leases no work, or that it leases work again.
func (l *Leases) SetNone(none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.none = none
}

// Health implements [runtime.Cloud].
func (l *Leases) Health() runtime.ServiceHealth {
	l.mu.Lock()
	defer l.mu.Unlock()
	return runtime.ServiceHealth{LeasesNone: l.none}
}

// SetSlow delays the response to each Renew by this time.
func (l *Leases) SetSlow(slow time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = slow
}

// Lose ends the leases of a job.
func (l *Leases) Lose(jobID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.held {
		if lease.job == jobID {
			lease.lost = true
		}
	}
}

// only returns the lease of a job, or an empty one. A job must have had only one lease.
func (l *Leases) only(jobID string) heldLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.held {
		if lease.job == jobID {
			return *lease
		}
	}
	return heldLease{}
}

// Result returns the result with which the lease of a job was completed. A job must have had
// only one lease.
func (l *Leases) Result(jobID string) runtime.LeaseResult { return l.only(jobID).result }

// Expires returns when the lease of a job expires; zero if there is none. A job must have had
// only one lease.
func (l *Leases) Expires(jobID string) time.Time { return l.only(jobID).expires }

// Renewals returns the times at which the lease of a job was renewed, without the calls of
// Renew that report the beginning of the work. A job must have had only one lease.
func (l *Leases) Renewals(jobID string) []time.Time { return slices.Clone(l.only(jobID).renewed) }

// Acquires returns the times of the calls of Acquire.
func (l *Leases) Acquires() []time.Time { return l.Calls(Acquire) }

// Tune implements [runtime.Cloud].
func (l *Leases) Tune(tuning runtime.Tuning) runtime.NextPoll {
	l.mu.Lock()
	l.tuning = tuning
	l.mu.Unlock()
	return l.Cloud.Tune(tuning)
}

// NextLease implements [runtime.Leaser].
func (l *Leases) NextLease() runtime.NextPoll {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.polled.IsZero() {
		return runtime.NextPoll{}
	}
	return runtime.NextPoll{At: l.polled.Add(l.tuning.PollingInterval)}
}

// errUnhealthy is the error of a service that does not work.
var errUnhealthy = errors.New("the service does not work")

// Acquire implements [runtime.Leaser].
func (l *Leases) Acquire(ctx context.Context, kinds []runtime.Kind) (runtime.Claim, error) {
	if err := l.applyFault(ctx, Acquire); err != nil {
		return runtime.Claim{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.polled = now
	next := slices.IndexFunc(l.waiting, func(w leasedWork) bool {
		return slices.Contains(kinds, w.kind) && slices.Contains(l.tuning.LeasedKinds(), w.kind)
	})
	switch {
	case l.unhealthy:
		return runtime.Claim{}, errUnhealthy
	case next < 0:
		return runtime.Claim{}, nil
	}
	id, kind := l.waiting[next].job, l.waiting[next].kind
	l.waiting, l.polled = slices.Delete(l.waiting, next, next+1), time.Time{}
	lease := fmt.Sprintf("lease-%d", len(l.held)+1)
	l.held[lease] = &heldLease{job: id, expires: now.Add(l.Span)}
	return runtime.Claim{Job: &runtime.Job{
		ID: id, Kind: kind, WorkflowID: "scan-" + id, Token: secret.New("token-of-" + id),
		Lease: runtime.Lease{ID: lease, Token: secret.New("token-of-" + lease), Until: now.Add(l.Span)},
	}}, nil
}

// lease returns the lease of a job, or an error if the lease has ended. The caller holds the
// lock.
func (l *Leases) lease(job *runtime.Job) (*heldLease, error) {
	lease := l.held[job.Lease.ID]
	switch {
	case l.unhealthy:
		return nil, errUnhealthy
	case lease == nil || lease.lost || !time.Now().Before(lease.expires) || lease.result != "":
		return nil, fmt.Errorf("%s: %w", job.Lease.ID, runtime.ErrLeaseLost)
	}
	return lease, nil
}

// Renew implements [runtime.Leaser].
func (l *Leases) Renew(ctx context.Context, job *runtime.Job, begin bool) (time.Duration, error) {
	if err := l.applyFault(ctx, Renew); err != nil {
		return 0, err
	}
	l.mu.Lock()
	lease, err := l.lease(job)
	if err == nil {
		lease.expires = time.Now().Add(l.Span)
		if !begin {
			lease.renewed = append(lease.renewed, time.Now())
		}
	}
	slow := l.slow
	l.mu.Unlock()
	if err := sleep(ctx, slow); err != nil {
		return 0, err
	}
	return l.Span, err
}

// Complete implements [runtime.Leaser].
func (l *Leases) Complete(ctx context.Context, job *runtime.Job, result runtime.LeaseResult, _ string) error {
	if err := l.applyFault(ctx, Complete); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, err := l.lease(job)
	if err == nil {
		lease.result = result
	}
	return err
}
