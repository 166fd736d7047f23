package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cmwa-project/cmwa/cloud"
	"github.com/cmwa-project/cmwa/cmd/cli"
	"github.com/cmwa-project/cmwa/cmd/cli/command"
	"github.com/cmwa-project/cmwa/cmd/cmwa/control"
	"github.com/cmwa-project/cmwa/cmd/cmwa/logging"
	"github.com/cmwa-project/cmwa/cmd/cmwa/tracing"
	"github.com/cmwa-project/cmwa/reconcile"
	"github.com/cmwa-project/cmwa/reconcile/status"
	"github.com/cmwa-project/cmwa/reconcile/watch"
	"github.com/cmwa-project/cmwa/runtime"
	"github.com/cmwa-project/cmwa/schema"
)

func runCommand(force context.Context, s stdio) command.Command {
	var config, pin string
	var dry bool
	return command.Command{
		Name: "run", Help: "start the agent: claim jobs and run them",
		Forms: []command.Form{{
			command.Optional(command.String(&config, "config", command.File, "configuration file; otherwise "+
				"PULUMI_AGENT_CONFIG, or the first pulumi-workflow-agent.yaml in the documented directories")),
			command.Optional(command.String(&pin, "service-url-pin", command.URL, "the only service_url that the "+
				"configuration may have, also after a reload; otherwise CMWA_SERVICE_URL_PIN")),
			command.Optional(command.Bool(&dry, "dry-run",
				"check the configuration, print the first actions of the agent, and exit")),
		}},
		Daemon: true,
		Long: `The agent claims jobs until it receives a TERM or INT (Ctrl-C):

  first signal   claims no more jobs, and waits for running jobs, up to
                 shutdown_timeout
  second signal  stops running jobs, and reports them as failed; pulumi has at
                 most 30 s to end, or cancel_grace_period without this signal
  third signal   exits at once; jobs that still run continue, and the next start
                 adopts them

If the agent runs in a Kubernetes Pod, jobs in Pods are not stopped: they continue, and the next
agent adopts them.

While it waits, a changed shutdown_timeout in the file takes effect at once. cmwa drain does what the
first signal does; cmwa pause makes one pool claim no jobs.

The agent follows its configuration file and applies each change. A HUP checks the file at once, and
retries what waits after a failure, unless the service requested the wait.`,
		Run: func(ctx context.Context, _ []string) error {
			if pin != "" {
				s.environ = maps.Clone(s.environ)
				s.environ[pinVariable] = pin
			}
			if dry {
				return dryRun(config, s)
			}
			// A HUP requests a check of the configuration and a retry. By default it would end
			// the process and abandon its jobs, so it is received until the process exits.
			hangUps := make(chan os.Signal, 1)
			signal.Notify(hangUps, syscall.SIGHUP)

			// Even the first line of the log has the configured format.
			log := logging.New(s.stderr, startFormat(config, s.environ))
			return log.Failure(runAgent(ctx, force, hangUps, config, s.environ, log))
		},
	}
}

// runAgent is cmwa run. It returns when the agent has stopped after a signal or after cmwa
// drain, when every pool has finished its single run, or when the agent fails.
func runAgent(
	ctx, force context.Context, hangUps <-chan os.Signal, config string, environ environment, log *logging.Log,
) error {
	if err := cloud.CheckProxy(environ.lookup); err != nil {
		return cli.Usage(fmt.Errorf("%w: set it to a URL such as http://proxy.example:3128", err))
	}
	watcher := watch.New()
	reloader := newReloader(config, environ, watcher, log.Logger)
	if err := reloader.Reload(); err != nil {
		return cli.Usage(err)
	}
	c := reloader.State().Config
	first := reconcile.Want(c, reloader.State().Generation)

	d, err := newDaemon(ctx, log, first.Process)
	if err != nil {
		return err
	}
	defer d.close()
	agent, warn, err := identify(c, environ, log.Logger)
	if err != nil {
		return err
	}
	defer agent.Close()
	journal, closeJournal := openJournal(agent, log.Logger)
	defer closeJournal()

	traces, err := tracing.Open(environ.lookup, tracing.Agent{ID: agent.ID, Version: cli.Version()}, log.Logger)
	if err != nil { // others may set these variables for all containers of a cluster
		log.Warn("cannot export traces; jobs are not affected", "error", err)
	}
	var tracer runtime.Tracer
	if traces != nil { // a nil pointer is not a nil interface
		tracer = traces
		defer traces.Close()
	}

	started := time.Now()
	ctx, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	counters := status.NewCounters(cloud.Routes()...)
	executors := &executors{
		environ: environ, agent: agent, journal: journal, needsID: warn, log: log.Logger, metrics: counters,
	}
	build := builder(environ, agent, executors, d.slots, counters, tracer, log.Logger)
	loop := reconcile.New(build, d.prepare, first.Process, log.Logger)
	snapshots := status.Snapshots{
		Version: cli.Version(), StartedAt: started, Config: reloader.State, Loop: loop.Status,
		WatchMode: watcher.Mode, Counters: counters, PodPhases: executors.podPhases,
	}
	log.Info("agent starts", "version", cli.Version(), "config", absolutePath(c), "pools", len(c.Pools),
		"agent", agent.ID, "state", agent.Directory)
	controlled := control.Agent{
		Directory: agent.Directory, Started: started, Loop: loop, Drain: func() { drain(errDrain) },
		Status: func() any { return snapshots.Document(time.Now()) },
		Plan:   planner(environ, func() *schema.Config { return reloader.State().Config }),
	}
	var names []string
	for _, pool := range c.Pools {
		names = append(names, pool.Name)
	}
	control.Restore(controlled, names, log.Logger)
	serveControl, warning := control.Open(controlled, log.Logger)
	if warning != "" {
		snapshots.Warnings = []string{warning}
	}
	d.handle(status.Handler(snapshots))
	reloader.Deliver(loop.Want)

	// Run until the loop returns, or one of these goroutines fails. Until the loop returns,
	// the agent follows its file and its HTTP server responds.
	group, groupCtx := errgroup.WithContext(ctx)
	claiming, stopClaiming := context.WithCancel(groupCtx)
	running, stopRunning := context.WithCancel(context.WithoutCancel(groupCtx))
	group.Go(func() error {
		defer stopRunning()
		defer stopClaiming()
		return loop.Run(groupCtx, force)
	})
	group.Go(func() error { return d.serve(running) })
	group.Go(func() error { return serveControl(running) })
	group.Go(func() error {
		superviseBySystemd(running, groupCtx.Done(), func() { loop.Status() }, log.Logger)
		return nil
	})
	group.Go(func() error { return loop.FollowLeftovers(claiming, recovery(agent, executors, log.Logger).List) })
	group.Go(func() error { return watcher.Run(running) })
	group.Go(func() error {
		return reloader.Follow(running, reconcile.Triggers{
			Changed: watcher.Changed(), Asked: hangUps, BeforeCheck: watcher.Check, AfterCheck: loop.Retry,
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	reason := "single run finished"
	switch {
	case errors.Is(context.Cause(ctx), errDrain):
		reason = errDrain.Error()
	case ctx.Err() != nil:
		reason = "signal received"
	}
	log.Info("agent stopped", "reason", reason)
	return nil
}

// absolutePath returns the path of a configuration's file, or "" if it has none.
func absolutePath(c *schema.Config) string {
	if c.Path == "" {
		return ""
	}
	return c.Paths()[0]
}

// errDrain is the cause with which cmwa drain cancels the context of the agent.
var errDrain = errors.New("cmwa drain")

// startFormat returns the log_format of a configuration, which may be invalid.
func startFormat(config string, environ environment) string {
	if format := strings.TrimSpace(environ["PULUMI_AGENT_LOG_FORMAT"]); format != "" {
		return format
	}
	source, err := find(config, environ)
	if err != nil {
		return ""
	}
	return schema.TopLevelScalar(source.Content, "log_format")
}

func newReloader(config string, environ environment, watcher *watch.Watcher, log *slog.Logger) *reconcile.Reloader {
	places := placesOf(config, environ)
	return reconcile.NewReloader(reconcile.ReloaderParts{
		Find:  func() (schema.Source, error) { return findForRun(places) },
		Watch: watcher.Watch, Written: watcher.Written, Frozen: watch.Frozen, Log: log,
	})
}

// pinVariable is the variable with the only service_url that the configuration may have. A reload
// cannot change it.
const pinVariable = "CMWA_SERVICE_URL_PIN"

// findForRun finds the configuration as a running agent does.
func findForRun(places schema.SearchPaths) (schema.Source, error) {
	source, err := schema.Find(places)
	source.Release, source.PinnedServiceURL = carriedOut, strings.TrimSpace(places.Environ[pinVariable])
	return source, err
}

// find reads the file that the command line or PULUMI_AGENT_CONFIG names. Without such a
// name, it reads the first configuration in the documented directories.
func find(config string, environ environment) (schema.Source, error) {
	source, err := schema.Find(placesOf(config, environ))
	source.Release.StopTime = stopTime
	return source, err
}

// placesOf returns where the configuration is searched. It calls [os.Getwd] only if the
// search includes the working directory, because that directory may have been deleted. If
// os.Getwd fails, the search uses ".", which then contains no file.
func placesOf(config string, environ environment) schema.SearchPaths {
	places := schema.SearchPaths{Config: config, Environ: environ}
	places.Home, _ = os.UserHomeDir()
	places.Executable, _ = os.Executable()
	if !places.Named() {
		places.WorkingDirectory, _ = os.Getwd()
	}
	return places
}
