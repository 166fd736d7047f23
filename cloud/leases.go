package cloud

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/printable"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Paths of the calls about leases.
const (
	capabilitiesPath = "/api/capabilities"
	leasesPath       = "/api/background-activities/worker/lease"
	leaseRoute       = leasesPath + "/{lease}"
)

// leasing is what the client knows about the leases of its service.
type leasing struct {
	schedule *schedule
	log      *slog.Logger

	mu        sync.Mutex
	mode      runtime.LeasedWork
	supported bool      // the service has reported the capability
	none      bool      // the last accepted answer was that the service leases no work
	until     time.Time // no call about leases before this time; zero if calls are allowed

	refused refusals // of the calls about leases
}

func newLeasing(tuning *runtime.Tuning, log *slog.Logger) *leasing {
	return &leasing{schedule: newSchedule(tuning, log), log: log, mode: tuning.LeasedWork}
}

// tune replaces the settings. After a change of leased_work, calls about leases are allowed
// again.
func (l *leasing) tune(tuning *runtime.Tuning) {
	l.schedule.tune(tuning)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mode != tuning.LeasedWork {
		l.mode, l.until, l.none = tuning.LeasedWork, time.Time{}, false
	}
}

// off prevents calls about leases for a time, and logs the reason.
func (l *leasing) off(span time.Duration, message string, attributes ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.supported, l.until = false, time.Now().Add(span)
	l.log.Warn(message, append(attributes, "retry_in", span)...)
}

var _ runtime.Leaser = (*Client)(nil)

// NextLease implements [runtime.Leaser].
func (c *Client) NextLease() runtime.NextPoll {
	next := c.leasing.schedule.peek()
	c.leasing.mu.Lock()
	defer c.leasing.mu.Unlock()
	if next.At.Before(c.leasing.until) {
		next.At = c.leasing.until
		if c.leasing.none {
			next.Reason = "the service leases no work"
		}
	}
	return next
}

// leasesNone reports whether the service has answered that it leases no work.
func (l *leasing) leasesNone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.none
}

// answered records that the service has answered a poll for leased work.
func (l *leasing) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.none = false
}

// noLeases prevents calls about leases for an hour, because the service leases no work. Err is its
// refusal; nil if it reported other capabilities. The first log line is a warning if the pool now gets
// no work at all, or if leases were expected.
func (l *leasing) noLeases(tuning runtime.Tuning, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	level, attributes := slog.LevelDebug, []any{"retry_in", capabilityTime}
	message := "service leases no scans or policy evaluations"
	if !tuning.ClaimsDeployments() {
		message += ", and enabled_workflow_types has no deployment: the pool gets no work"
	}
	if !l.none && (!tuning.ClaimsDeployments() || l.supported || tuning.LeasedWork == runtime.LeasedAlways) {
		level = slog.LevelWarn
	}
	if err != nil {
		attributes = append(attributes, "error", err)
	}
	l.supported, l.none, l.until = false, true, time.Now().Add(capabilityTime)
	l.log.Log(context.Background(), level, message, attributes...)
}

// Acquire implements [runtime.Leaser].
//
//  1. Only a service with the capability [LeaseCapability] gets a call about leases, unless
//     leased_work is always: see the package documentation. The capabilities of a service
//     are read first, with a public call that changes nothing.
//  2. A response without the fields of [Lease], or with a kind that was not requested, is
//     ignored, and no lease is requested for an hour.
//  3. A 404, 405 or 501 means that the call does not exist. It changes nothing until it is
//     accepted: see refusals. Then no lease is requested for an hour.
func (c *Client) Acquire(ctx context.Context, kinds []runtime.Kind) (runtime.Claim, error) {
	// 1. Find out whether the service leases work.
	tuning := c.settings()
	kinds = slices.DeleteFunc(tuning.LeasedKinds(), func(kind runtime.Kind) bool {
		return !slices.Contains(kinds, kind)
	})
	if len(kinds) == 0 {
		return runtime.Claim{Next: c.leasing.schedule.skip()}, nil
	}
	if tuning.LeasedWork == runtime.LeasedAuto {
		if leases, err := c.leasesWork(ctx); !leases {
			return runtime.Claim{Next: c.NextLease()}, err
		}
	}
	if next, err := c.leasing.schedule.begin(); err != nil {
		return runtime.Claim{Next: next}, err
	}

	var job *runtime.Job
	var wait time.Duration
	err := c.authorized(ctx, func(token secret.String) (err error) {
		job, wait, err = c.acquire(ctx, token, kinds)
		return err
	})
	o := outcome{job: job != nil, retryAfter: wait}
	refused := c.leasing.refused.accepted(err)
	unusable, isUnusable := errors.AsType[*unusableLeaseError](err)
	switch {
	case err == nil:
		c.leasing.answered()
	case isUnusable: // 2.
		c.leasing.off(capabilityTime, "answer to the poll for leased work is not understood, and is ignored",
			"fields", unusable.fields)
		err = nil
	case lacksLeases(err) && refused: // 3.
		c.leasing.noLeases(tuning, err)
	case lacksLeases(err):
		c.leasing.schedule.record(outcome{})
		return runtime.Claim{Next: c.NextLease()}, err
	default:
		o = c.classify(err, false)
	}
	c.leasing.schedule.record(o)
	return runtime.Claim{Job: job, Next: c.NextLease()}, o.err
}

// lacksLeases reports whether an error means that the service has no call for leases.
func lacksLeases(err error) bool {
	absent := []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}
	return slices.Contains(absent, statusOf(err))
}

// leasesWork reports whether the service has reported that it leases work. A call that fails
// is repeated at the next poll. A refusal counts only when it is accepted: see refusals.
func (c *Client) leasesWork(ctx context.Context) (bool, error) {
	l := c.leasing
	l.mu.Lock()
	known := l.supported
	l.mu.Unlock()
	if known {
		return true, nil
	}

	_, _, text, err := c.ask(ctx, c.current().calls, call{
		method: http.MethodGet, path: capabilitiesPath, check: wantJSON,
	})
	var answer Capabilities
	supported := err == nil && json.Unmarshal(text, &answer) == nil &&
		slices.Contains(answer.Capabilities, Capability{Name: LeaseCapability, Version: LeaseVersion})

	if refused := l.refused.accepted(err); !supported && (err == nil || refused) {
		l.noLeases(c.settings(), err)
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.until = time.Now().Add(c.settings().PollingInterval)
		l.log.Debug("cannot read the service's capabilities", "error", err)
		return false, fmt.Errorf("read the service's capabilities: %w", err)
	}
	l.supported, l.none, l.until = true, false, time.Time{}
	l.log.Info("service leases scans and policy evaluations")
	return true, nil
}

// acquire makes one request for a lease.
func (c *Client) acquire(
	ctx context.Context, token secret.String, kinds []runtime.Kind,
) (*runtime.Job, time.Duration, error) {
	request := AcquireRequest{}
	for _, kind := range kinds {
		request.Kinds = append(request.Kinds, string(kind))
	}
	body, _ := json.Marshal(request) // cannot fail: strings only
	started := time.Now()
	status, header, text, err := c.ask(ctx, c.current().calls, call{
		method: http.MethodPost, path: leasesPath + "/acquire", token: token, body: body,
		contentType: "application/json", check: wantJSON,
	})
	if err != nil {
		return nil, 0, err
	}
	wait, _ := retryAfter(header, time.Now())
	if status == http.StatusNoContent || len(bytes.TrimSpace(text)) == 0 {
		return nil, wait, nil
	}
	job, err := parseLease(text, kinds, started)
	return job, wait, err
}

// unusableLeaseError is a lease that the agent cannot carry out. It has the names of the
// fields, but no values: they may be secret.
type unusableLeaseError struct{ fields string }

func (e *unusableLeaseError) Error() string {
	return "the lease lacks a field, or its kind was not requested"
}

// parseLease decodes a lease that was requested for these kinds. Began is the time of the
// request.
func parseLease(text []byte, kinds []runtime.Kind, started time.Time) (*runtime.Job, error) {
	var lease Lease
	if json.Unmarshal(text, &lease) != nil || lease.JobID == "" || lease.JobToken == "" || lease.LeaseID == "" ||
		lease.LeaseToken == "" || leaseTime(lease.LeaseSeconds) == 0 ||
		!slices.Contains(kinds, runtime.Kind(lease.Kind)) {
		return nil, &unusableLeaseError{fieldNames(text)}
	}
	return &runtime.Job{
		ID: lease.JobID, Kind: runtime.Kind(lease.Kind), WorkflowID: cmp.Or(lease.TypeSpecificID, lease.LeaseID),
		Token: secret.New(lease.JobToken), OIDC: secret.New(lease.OIDCToken),
		Lease: runtime.Lease{
			ID: lease.LeaseID, Token: secret.New(lease.LeaseToken),
			Until: started.Add(leaseTime(lease.LeaseSeconds)),
		},
	}, nil
}

// leaseTime returns the duration of a lease, or 0 if a response has no valid one.
func leaseTime(seconds float64) time.Duration {
	if !(seconds > 0) { // NaN too
		return 0
	}
	return time.Duration(min(seconds, maxLease.Seconds()) * float64(time.Second))
}

// maxFieldNames limits the names of the fields of an unusable lease, in bytes.
const maxFieldNames = 200

// fieldNames returns the names of the fields of a JSON object, sorted.
func fieldNames(text []byte) string {
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) != nil {
		return "not a JSON object"
	}
	names := printable.OneLine(strings.Join(slices.Sorted(maps.Keys(object)), ", "))
	return printable.Shorten(names, maxFieldNames)
}

// Renew implements [runtime.Leaser]. The lease is lost only after a repeated refusal. If the
// refusal is a 409 or 410 in the JSON error form of the service, one more such response to a
// second request at once is enough. Any other 401, 404, 409, 410 or 412 must be the only
// answer for half a minute, at least three times.
func (c *Client) Renew(ctx context.Context, job *runtime.Job, begin bool) (time.Duration, error) {
	name := "renew"
	if begin {
		name = "begin"
	}
	span, err := c.renew(ctx, job, name)
	lost := c.refusalAccepted(job, err) && (errors.Is(err, runtime.ErrGone) || errors.Is(err, runtime.ErrUnauthorized))
	if isFinal(err) && !lost {
		_, again := c.renew(ctx, job, name)
		lost = isFinal(again)
	}
	switch {
	case lost:
		return 0, fmt.Errorf("%w: %w", runtime.ErrLeaseLost, err)
	case err != nil:
		return 0, fmt.Errorf("%s lease: %w", name, err)
	}
	return span, nil
}

// renew makes one attempt of the call begin or renew.
func (c *Client) renew(ctx context.Context, job *runtime.Job, name string) (time.Duration, error) {
	_, _, text, err := c.ask(ctx, c.callsOf(job, retry{}), leaseCall(job, name, []byte("{}"), nil))
	if err != nil {
		return 0, err
	}
	var answer Renewal
	if json.Unmarshal(text, &answer) != nil || leaseTime(answer.LeaseSeconds) == 0 {
		return 0, errors.New("the response has no cmwaLeaseSeconds")
	}
	return leaseTime(answer.LeaseSeconds), nil
}

// Complete implements [runtime.Leaser].
func (c *Client) Complete(ctx context.Context, job *runtime.Job, result runtime.LeaseResult, reason string) error {
	body, _ := json.Marshal(LeaseResult{Result: string(result), Reason: reason}) // cannot fail: strings only
	var refused refusals
	calls := c.callsOf(job, retry{count: jobRetries, wait: leaseWait, maxWait: leaseMaxWait})
	_, _, _, err := calls.do(ctx, leaseCall(job, "complete", body, func(_ context.Context, err error) bool {
		return !refused.accepted(err) && !isFinal(err)
	}))
	if err != nil {
		return fmt.Errorf("complete lease: %w", withoutURL(err))
	}
	return nil
}

// leaseCall returns a call about the lease of a job.
func leaseCall(job *runtime.Job, name string, body []byte, retry retryPolicy) call {
	return call{
		method: http.MethodPost, path: leasesPath + "/" + url.PathEscape(job.Lease.ID) + "/" + name,
		route: leaseRoute + "/" + name, token: job.Lease.Token, body: body, contentType: "application/json",
		check: wantJSON, retry: retry,
	}
}

// callsOf returns a caller for calls about a job, over the connections of [Client.jobs].
func (c *Client) callsOf(job *runtime.Job, retry retry) *caller {
	return newCaller(callerOptions{
		service: c.service, userAgent: c.agent, transport: c.transportOf(job), timeout: c.settings().RequestTimeout,
		retry: retry, log: c.log, metrics: c.metrics,
	})
}
