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
	"sync"
	"time"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema/secret"
)

// Limits of a job's end.
const (
	farewellTime   = time.Minute      // after the agent's request to stop and the grace, for the last words
	statusPatience = 15 * time.Minute // for one status
)

// How calls are repeated. How often is bounded by the contexts of the calls.
const (
	requestTimeout = 30 * time.Second
	retryCount     = 1 << 30
	retryWait      = 500 * time.Millisecond
	retryMaxWait   = 15 * time.Second
)

// Options is what a runner needs beside its job.
type Options struct {
	Version   string            // of this release, for the log of step 0
	Environ   []string          // the program's own environment, NAME=VALUE
	Progress  io.Writer         // gets the latest runtime.Progress, a line each; nil discards it
	Hurry     <-chan struct{}   // closed when a running step shall be killed at once; may be nil
	Transport http.RoundTripper // nil is a pool of connections of its own
	Log       *slog.Logger      // nil is silence
}

// Why a job's work, or its whole life, ends early.
var (
	errStopped = errors.New("the job was stopped by the agent")
	errGone    = errors.New("the service does not want the job any more")
	errNoTime  = errors.New("there is no time left to tell how the job ended")
	errFailed  = errors.New("a step failed") // and the service knows

	errSucceeded = errors.New("every step succeeded, and the last success could not be reported")
)

// job is one job that runs. Its methods belong to one goroutine, but for leave.
type job struct {
	handover   *runtime.Handover
	options    Options
	log        *slog.Logger
	definition *cloud.Definition
	client     *cloud.Jobs
	progress   *progress
	leave      context.CancelCauseFunc // ends everything; nothing is told any more

	matcher *matcher
	env     environ
	envFile *envFile
	stopped time.Time // when the agent, or what ends the instance, asked to end; read after errStopped

	private string // folder of our own
	root    string // what stands for "/": the handover's, or one that can be written to

	undo   []func()       // in reverse order, at the end
	drains sync.WaitGroup // of outputs that outlive their steps
}

// Run leads a job to its end and returns one of runtime's exit codes. The end of
// ctx stops the running step in order, and the job is reported as failed;
// [Options.Hurry] kills the step.
func Run(ctx context.Context, h *runtime.Handover, o Options) (code int) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	log := o.Log.With("component", "runner", "job", h.JobID)
	if h.Service == "" || h.JobID == "" || h.Token == "" {
		log.Error("the handover names no service, no job or no token")
		return runtime.CodeUsage
	}
	if h.Root == "" {
		h.Root = "/"
	}
	transport := o.Transport
	if transport == nil {
		own, err := cloud.Transport(h.CA)
		if err != nil {
			log.Error("trusting the system's certificates alone", "error", err)
		}
		own.Proxy = proxyOf(h.Forward, o.Environ)
		defer own.CloseIdleConnections()
		transport = own
	}
	life, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	work, stop := context.WithCancelCause(life)
	j := &job{
		handover: h, options: o, log: log, leave: leave, root: h.Root,
		definition: &cloud.Definition{},
		matcher:    newMatcher(patterns(secretsOf(h, &cloud.Definition{}, nil))),
		progress:   newProgress(o.Progress, log),
		client: cloud.NewJobs(cloud.JobsOptions{
			Service: h.Service, JobID: h.JobID, Token: secret.New(h.Token), UserAgent: h.UserAgent, Transport: transport,
			RequestTimeout: requestTimeout, RetryCount: retryCount, RetryWait: retryWait, RetryMaxWait: retryMaxWait, Log: log,
		}),
	}
	var children sync.WaitGroup
	defer func() {
		stop(nil)
		leave(nil)
		children.Wait()
		j.clear()
		j.progress.close()
	}()
	children.Go(func() { beat(life, j.client, j.gone, log) })
	children.Go(func() {
		select {
		case <-ctx.Done():
			j.stopped = time.Now()
			stop(errStopped)
		case <-life.Done():
			return
		}
		select {
		case <-time.After(j.grace() + farewellTime):
			leave(errNoTime)
		case <-life.Done():
		}
	})

	err := j.run(life, work)
	switch {
	case err == nil:
		return runtime.CodeSucceeded
	case errors.Is(err, errFailed):
		return runtime.CodeFailed
	case errors.Is(err, errGone):
		log.Info("the job ends without a word", "reason", err)
		return runtime.CodeGone
	case errors.Is(err, errSucceeded):
		log.Error("cannot report that the job succeeded", "error", err)
		return runtime.CodeSucceededUnreported
	default:
		log.Error("cannot report that the job failed", "error", err)
		return runtime.CodeFailedUnreported
	}
}

// run runs all steps in order. An error is errFailed, errGone, or the reason
// why the service could not be told.
func (j *job) run(life, work context.Context) error {
	definition, broken := cloud.ParseDefinition(j.handover.Definition)
	if broken == nil {
		j.definition = definition
	}
	if limit := time.Duration(j.definition.Timeout); limit > 0 {
		limited, release := context.WithTimeoutCause(work, limit, fmt.Errorf("the job took longer than its time limit of %s and was stopped", limit))
		defer release()
		work = limited
	}
	if err := j.setUp(life, work, broken); err != nil {
		return err
	}
	for i := range j.definition.Steps {
		if i == 0 {
			continue
		}
		if err := j.step(life, work, i); err != nil {
			return err
		}
	}
	return nil
}

// gone ends everything because the service wants to hear no more.
func (j *job) gone(err error) { j.leave(fmt.Errorf("%w: %w", errGone, err)) }

func (j *job) grace() time.Duration {
	if grace := j.handover.Grace.Duration(); grace > 0 {
		return grace
	}
	return runtime.StopGrace
}

// later notes what is to be undone at the job's end.
func (j *job) later(undo func()) { j.undo = append(j.undo, undo) }

// clear undoes everything.
func (j *job) clear() {
	for i := range j.undo {
		j.undo[len(j.undo)-1-i]()
	}
	j.drains.Wait()
}

// keep drains a step's output until the job's end, for processes in the
// background that write to it.
func (j *job) keep(o *output) {
	j.drains.Go(o.drain)
	j.later(func() { _ = o.pipe.Close() })
}

// makePrivate makes a folder that nobody else can look into.
func (j *job) makePrivate() error {
	var errs []error
	beside := "" // this program: a volume in a Pod, and unlike /dev/shm not mounted noexec
	if program, err := os.Executable(); err == nil {
		beside = filepath.Dir(program)
	}
	for _, parent := range []string{j.env["TMPDIR"], "/tmp", "/var/tmp", j.root, j.env["HOME"], beside, "/dev/shm"} {
		if parent == "" {
			continue
		}
		folder, err := os.MkdirTemp(parent, "workflow-runner-")
		if err == nil {
			j.private = folder
			j.later(func() { _ = os.RemoveAll(folder) })
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("make a folder for scripts, for which one of these must be writable: %w", errors.Join(errs...))
}
