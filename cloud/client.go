package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// jobRetries is the number of retries of a call about a job. It does not depend on the
// configuration, because a claimed job must be started and its outcome reported if possible. The
// context of the caller limits the time.
const jobRetries = 1000

// Options are the options of a Client.
type Options struct {
	Identity   runtime.Identity
	Tuning     runtime.Tuning
	UserAgent  string
	Transports *Transports // nil means that no other client uses the connections
	Log        *slog.Logger
	Metrics    runtime.Metrics // counts the calls; nil counts nothing
}

// Client makes the calls of one pool. It implements [runtime.Cloud] and [runtime.Leaser], and
// is safe for concurrent use.
type Client struct {
	service string
	agent   string
	log     *slog.Logger
	metrics runtime.Metrics

	transports     *Transports
	credentials    *credentials
	schedule       *schedule
	leasing        *leasing
	statusCall     atomic.Int32  // the call for the status of a job: see JobStatus
	minPollTimeout time.Duration // the constant of this name, except in tests
	bodyTimeout    time.Duration // of a poll's response

	mu          sync.Mutex
	tuning      *runtime.Tuning // never modified, because schedules and credentials share it
	connections connections
	suppressed  map[string]time.Time        // by workflow: end of the time without status calls
	refusals    map[string]*subjectRefusals // by workflow
}

// subjectRefusals are the refusals of one workflow: of its status calls, or of the calls
// that renew its lease.
type subjectRefusals struct {
	refusals
	last time.Time // of the last call that was refused or had no response
}

// connections are connections to the service.
type connections struct {
	*transports
	calls *caller // everything but the poll
	polls *caller // a new connection for each poll: see New
}

var _ runtime.Cloud = (*Client)(nil)

// New makes a client. It sends nothing.
//
// Each poll has a new connection. On a reused connection that breaks, Go's transport
// retries a GET without notice, and a poll that is sent twice may claim two jobs.
func New(o Options) *Client {
	tuning := o.Tuning
	c := &Client{
		service:        o.Identity.Service,
		agent:          o.UserAgent,
		log:            o.Log,
		metrics:        o.Metrics,
		transports:     cmp.Or(o.Transports, NewTransports(nil)),
		schedule:       newSchedule(&tuning, o.Log),
		leasing:        newLeasing(&tuning, o.Log.With("work", "scans and policy evaluations")),
		tuning:         &tuning,
		suppressed:     map[string]time.Time{},
		refusals:       map[string]*subjectRefusals{},
		minPollTimeout: minPollTimeout,
		bodyTimeout:    bodyTimeout,
	}
	c.connections = c.connect(tuning.CA)
	c.credentials = &credentials{identity: o.Identity, log: o.Log, caller: c.connections.calls, tuning: &tuning}
	return c
}

// connect returns connections that trust the system's certificates and certificates.
func (c *Client) connect(certificates string) connections {
	shared := c.transports.trusting(certificates)
	if shared.err != nil {
		c.log.Error("cannot use ca_file: only the system's certificates are trusted", "error", shared.err)
	}
	caller := func(transport *http.Transport) *caller { // without retries: schedule plans those of polls
		return newCaller(callerOptions{service: c.service, userAgent: c.agent, transport: transport, log: c.log,
			metrics: c.metrics})
	}
	return connections{transports: shared, calls: caller(shared.reusing), polls: caller(shared.single)}
}

// Tune implements [runtime.Cloud]. Active calls keep their settings. The calls about a job
// trust the certificates that were trusted when the job was claimed.
func (c *Client) Tune(tuning runtime.Tuning) runtime.NextPoll {
	c.mu.Lock()
	c.tuning = &tuning
	old := c.connections
	if tuning.CA != old.certificates {
		c.connections = c.connect(tuning.CA)
		old.reusing.CloseIdleConnections()
	}
	calls := c.connections.calls
	c.mu.Unlock()
	c.credentials.tune(&tuning, calls)
	c.leasing.tune(&tuning)
	return c.schedule.tune(&tuning)
}

// Retry implements [runtime.Cloud]. If the next poll fails, the wait begins again.
func (c *Client) Retry() runtime.NextPoll { return c.schedule.retryNow() }

// Health implements [runtime.Cloud].
func (c *Client) Health() runtime.ServiceHealth {
	return runtime.ServiceHealth{
		BreakerOpen: c.schedule.breakerOpen(), TokenExpiry: c.credentials.expiry(),
		LeasesNone: c.leasing.leasesNone(),
	}
}

// Close closes idle connections, also those of other clients with the same Transports. A later
// call makes new ones.
func (c *Client) Close() { c.current().reusing.CloseIdleConnections() }

// current returns the current connections.
func (c *Client) current() connections {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connections
}

func (c *Client) settings() runtime.Tuning {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.tuning
}

// Definition implements [runtime.Cloud].
func (c *Client) Definition(ctx context.Context, job *runtime.Job) (runtime.Definition, error) {
	return c.jobs(job).Definition(ctx)
}

// Report implements [runtime.Cloud].
func (c *Client) Report(ctx context.Context, job *runtime.Job, report runtime.Report) error {
	jobs := c.jobs(job)
	final := report.Status == runtime.Failed || report.Status == runtime.Succeeded
	if report.Status == "" && len(report.Lines) == 0 {
		return jobs.Heartbeat(ctx)
	}
	if report.Status == runtime.Running {
		if err := jobs.Status(ctx, report.Step, runtime.Running); err != nil {
			return err
		}
		beatCtx, cancel := context.WithTimeout(ctx, statusHeartbeatTimeout)
		err := jobs.Heartbeat(beatCtx)
		cancel()
		if err != nil {
			c.log.Debug("heartbeat failed", "job", job.ID, "error", err)
		}
	}
	if len(report.Lines) > 0 {
		batch := LogBatch{Offset: report.Offset}
		for _, line := range report.Lines {
			batch.Lines = append(batch.Lines, LogLine(line))
		}
		err := c.sendLines(ctx, jobs, report.Step, batch, final)
		switch {
		case errors.Is(err, runtime.ErrGone), err != nil && ctx.Err() != nil:
			return err
		case err != nil: // a failed log never fails a job
			level := slog.LevelWarn
			if errors.As(err, new(*runtime.OffsetError)) {
				level = slog.LevelDebug // the caller sends them again
			}
			c.log.Log(ctx, level, "cannot send lines of a job's log", "job", job.ID, "step", report.Step, "error", err)
			if !final {
				return fmt.Errorf("%w: %w", runtime.ErrLogsDropped, err)
			}
		}
	}
	if final {
		return jobs.Status(ctx, report.Step, report.Status)
	}
	return nil
}

// sendLines sends lines of a step. If the offset is not the number of lines that the service
// has stored, the error wraps [runtime.OffsetError]. Exception: the final lines of the step
// are sent once more at the right offset, because they may report why the job has failed.
func (c *Client) sendLines(ctx context.Context, jobs *Jobs, step int, batch LogBatch, final bool) error {
	ctx, cancel := context.WithTimeout(ctx, linesTimeout)
	defer cancel()
	err := jobs.Logs(ctx, step, batch)
	stored, ok := StoredLines(err)
	if !ok || stored == batch.Offset {
		return err
	}
	if !final {
		return fmt.Errorf("%w: %w", &runtime.OffsetError{Next: stored}, err)
	}
	batch.Offset = stored
	return jobs.Logs(ctx, step, batch)
}

// jobs returns a client for the calls about one job. If ca_file had other certificates when
// the job was claimed, the client uses connections that are closed after each call.
func (c *Client) jobs(job *runtime.Job) *Jobs {
	return NewJobs(JobsOptions{
		Service: c.service, JobID: job.ID, Token: job.Token, UserAgent: c.agent, Transport: c.transportOf(job),
		RequestTimeout: c.settings().RequestTimeout,
		RetryCount:     jobRetries, RetryWait: jobWait, RetryMaxWait: jobMaxWait, Log: c.log, Metrics: c.metrics,
	})
}

// transportOf returns the transport of calls about one job: see jobs.
func (c *Client) transportOf(job *runtime.Job) *http.Transport {
	w := c.current()
	if job.Tuning.CA != w.certificates {
		return c.transports.trusting(job.Tuning.CA).single
	}
	return w.reusing
}

// ask makes one call. request_timeout limits the call with its response.
func (c *Client) ask(ctx context.Context, by *caller, q call) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settings().RequestTimeout)
	defer cancel()
	status, header, text, err := by.do(ctx, q)
	return status, header, text, withoutURL(err)
}

// withoutURL returns an error of net/http without the URL of the call.
func withoutURL(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no response within request_timeout")
	}
	return secret.WithoutURL(err)
}
