package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// retryCount is the number of retries of a call. The context of the call limits them.
const retryCount = 1 << 30

// Options are the options of [Run].
type Options struct {
	Version   string            // release of this program, for the log of step 0
	Environ   []string          // environment of this program, NAME=VALUE
	Progress  io.Writer         // receives the latest runtime.Progress, one per line
	LocalLog  io.Writer         // receives the log of the steps and Log, if the handoff asks for it; may be nil
	Transport http.RoundTripper // nil creates one for the service
	Log       *slog.Logger      // nil discards the log

	// Requests that follow the end of ctx; see Run. Each is a channel to close, or nil.
	Interrupted <-chan struct{} // the agent ends the cancel grace period, and knows why the job ends
	Terminate   <-chan struct{} // end the cancel grace period now
	ForceStop   <-chan struct{} // kill a running step immediately

	timeout timeoutFunc // starts the time limits and grace periods; nil is context.WithTimeoutCause: see export_test.go
}

// timeoutFunc is a function like [context.WithTimeoutCause].
type timeoutFunc = func(ctx context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc)

// Causes for which the contexts of a job end early, and results of a job.
var (
	errStopped = errors.New("the job was stopped by a signal to its runner")
	errGone    = errors.New("the service has cancelled the job, or no longer has it")
	errNoTime  = errors.New("no time is left to report how the job ended")
	errFailed  = errors.New("a step failed") // and its failure was reported

	errSucceeded = errors.New("every step succeeded, and the last success could not be reported")
)

// job is a running job. Its methods must be called from one goroutine, except gone.
type job struct {
	handoff    *runtime.Handoff
	options    Options
	log        *slog.Logger
	definition *cloud.Definition
	client     *cloud.Jobs
	progress   *progress
	local      *localLog               // nil unless the handoff asks for it
	abort      context.CancelCauseFunc // ends the job without further reports of statuses
	idle       chan struct{}           // has a token while no step runs; the last reports of a stopped job take it

	matcher *matcher
	env     environ
	envFile *envFile
	stopped time.Time // time of the stop request; read after errStopped

	private string // directory of the runner, not readable by other users
	root    string // root of the job: that of the handoff, or a writable directory in its place

	cleanups []func()       // run in reverse order at the end
	drains   sync.WaitGroup // drains outputs that outlive their steps
}

// Run runs a job to its end and returns one of the exit codes of package runtime. The end
// of ctx stops the running step in the stages of the package documentation, and the job is
// reported as failed. The requests of the options end a stage early.
func Run(ctx context.Context, h *runtime.Handoff, o Options) (code int) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.timeout == nil {
		o.timeout = context.WithTimeoutCause
	}
	var local *localLog
	if h.LocalLog && o.LocalLog != nil {
		// The runner's messages too: a write to the same file would wait for one that blocks.
		local = newLocalLog(o.LocalLog)
		defer local.close()
		o.Log = slog.New(slog.NewTextHandler(local, nil)).With("component", "runner")
	}
	log := o.Log.With("job", h.JobID)
	if h.Service == "" || h.JobID == "" || h.Token == "" {
		log.Error("handoff has no service, no job or no token")
		return runtime.CodeUsage
	}
	if h.Root == "" {
		h.Root = "/"
	}

	transport := o.Transport
	if transport == nil {
		own, err := cloud.Transport(h.CA)
		if err != nil {
			log.Error("cannot use ca_file; only certificates of the system are trusted", "error", err)
		}
		own.Proxy = proxyOf(h.Forward, o.Environ)
		defer own.CloseIdleConnections()
		transport = own
	}

	// LogCtx ends when no time is left, jobCtx when no status may be reported, workCtx when
	// no step may run.
	logCtx, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	jobCtx, abort := context.WithCancelCause(logCtx)
	workCtx, stop := context.WithCancelCause(jobCtx)
	j := &job{
		handoff: h, options: o, log: log, abort: abort, idle: make(chan struct{}, 1), root: h.Root, local: local,
		definition: &cloud.Definition{},
		matcher:    newMatcher(patterns(secretsOf(h, &cloud.Definition{}, nil))),
		progress:   newProgress(o.Progress, log),
		client: cloud.NewJobs(cloud.JobsOptions{
			Service: h.Service, JobID: h.JobID, Token: secret.New(h.Token), UserAgent: h.UserAgent,
			Transport: transport, RequestTimeout: requestTimeout,
			RetryCount: retryCount, RetryWait: retryWait, RetryMaxWait: retryMaxWait, Log: log,
		}),
	}

	j.idle <- struct{}{}
	var children sync.WaitGroup
	defer func() {
		stop(nil)
		abandon(nil)
		children.Wait()
		j.cleanUp()
		j.progress.close()
	}()
	children.Go(func() { sendHeartbeats(jobCtx, j.client, j.gone, log) })
	stopJob := sync.OnceFunc(func() {
		j.stopped = time.Now()
		stop(errStopped)
	})
	if ctx.Err() != nil {
		stopJob() // not in the goroutine: a step could start before that runs
	}
	children.Go(func() {
		select {
		case <-ctx.Done():
			stopJob()
		case <-jobCtx.Done():
		}
		// The last reports of the job have finalReportTimeout after the end of a running step.
		select {
		case <-j.idle:
		case <-logCtx.Done():
		}
		runtime.Sleep(logCtx, nil, finalReportTimeout)
		abandon(errNoTime)
	})

	err := j.run(logCtx, jobCtx, workCtx)
	switch {
	case err == nil:
		return runtime.CodeSucceeded
	case errors.Is(err, errFailed):
		return runtime.CodeFailed
	case errors.Is(err, errGone):
		log.Info("job ended without a report", "reason", err)
		return runtime.CodeGone
	case errors.Is(err, errSucceeded):
		log.Error("cannot report that the job succeeded", "error", err)
		return runtime.CodeSucceededUnreported
	default:
		log.Error("cannot report that the job failed", "error", err)
		return runtime.CodeFailedUnreported
	}
}

// run runs all steps in order. It returns errFailed, errGone, or why the outcome could
// not be reported.
func (j *job) run(logCtx, jobCtx, workCtx context.Context) error {
	definition, broken := cloud.ParseDefinition(j.handoff.Definition)
	if broken == nil {
		j.definition = definition
	}
	if limit := time.Duration(j.definition.Timeout); limit > 0 {
		limited, release := j.options.timeout(workCtx, limit,
			fmt.Errorf("the job took longer than its time limit of %s and was stopped", limit))
		defer release()
		workCtx = limited
	}
	if err := j.setUp(logCtx, jobCtx, workCtx, broken); err != nil {
		return err
	}
	for i := 1; i < len(j.definition.Steps); i++ {
		if err := j.step(logCtx, jobCtx, workCtx, i); err != nil {
			return err
		}
	}
	return nil
}

// gone ends the job without further reports of statuses, because the service no longer has
// it. The log is still sent, as far as the service accepts it.
func (j *job) gone(err error) { j.abort(fmt.Errorf("%w: %w", errGone, err)) }

func (j *job) grace() time.Duration {
	if grace := j.handoff.Grace.Duration(); grace > 0 {
		return grace
	}
	return runtime.StopGrace
}

func (j *job) cancelGrace() time.Duration {
	return min(j.handoff.CancelGrace.Duration(), runtime.MaxCancelGrace)
}

func (j *job) addCleanup(undo func()) { j.cleanups = append(j.cleanups, undo) }

func (j *job) cleanUp() {
	for _, undo := range slices.Backward(j.cleanups) {
		undo()
	}
	j.drains.Wait()
}

// drainUntilEnd drains the output of a step until the end of the job, for background
// processes that write to it.
func (j *job) drainUntilEnd(o *output) {
	j.drains.Go(o.drain)
	j.addCleanup(func() { _ = o.pipe.Close() })
}

func (j *job) makePrivateDirectory() error {
	var errs []error
	programDirectory := "" // in a Pod a volume, which unlike /dev/shm is not mounted noexec
	if program, err := os.Executable(); err == nil {
		programDirectory = filepath.Dir(program)
	}
	parents := []string{j.env["TMPDIR"], "/tmp", "/var/tmp", j.root, j.env["HOME"], programDirectory, "/dev/shm"}
	for _, parent := range parents {
		if parent == "" {
			continue
		}
		directory, err := os.MkdirTemp(parent, "workflow-runner-")
		if err == nil {
			j.private = directory
			j.addCleanup(func() { _ = os.RemoveAll(directory) })
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("create a directory for scripts; one of these must be writable: %w", errors.Join(errs...))
}
