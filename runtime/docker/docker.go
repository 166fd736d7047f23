package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/cmwa-project/cmwa/runtime"
)

// withCancelGrace returns a context for calls that change the engine's state. It has a
// timeout, and outlives ctx by at most cancelGrace, so that an engine that does not respond
// cannot block a shutdown.
func withCancelGrace(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	graceCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() {
		runtime.Sleep(graceCtx, nil, cancelGrace)
		cancel()
	})
	return graceCtx, func() {
		stop()
		cancel()
	}
}

// oldestAPI is the oldest version of the engine's API that the client library supports: the
// version of Docker 19.03. With an older engine, the library would use a version that the
// engine does not support.
const oldestAPI = client.MinAPIVersion

// Options are the options of [New].
type Options struct {
	// Environ returns the variables DOCKER_HOST, DOCKER_API_VERSION, DOCKER_CONFIG and
	// HOME, which have the same meaning as for the docker command. DOCKER_CERT_PATH,
	// DOCKER_TLS_VERIFY and the PATH of credential helpers are those of the process.
	Environ func(name string) (string, bool)
	Agent   string // id of the agent, for its directories and loader containers
	Log     *slog.Logger

	RunnerDirectory string // directory of the runner in a container; must not be empty
}

// Executor runs jobs as containers of one engine. It has no state that a restarted agent
// needs. After a call has returned, it has no goroutine, except for each stream of
// [Executor.Follow] that is not closed.
type Executor struct {
	engine       *client.Client
	agent        string // id of the agent
	host         string // address of the engine
	architecture string // architecture of the engine's machine, as in GOARCH
	environ      func(name string) (string, bool)
	log          *slog.Logger
	directory    string // directory of the runner in a container
	programs     programs
	pullTimeout  time.Duration // time without progress after which a pull fails

	closeTimeout      time.Duration // see defaultCloseTimeout
	handoffErrorLimit time.Duration // see defaultHandoffErrorLimit

	directories sync.Map // directories of jobs by container, in case another client removes the container
}

// New creates an executor, and checks that the engine responds and can run jobs. The text of
// an error is one line with the hint.
func New(ctx context.Context, options Options) (*Executor, error) {
	if options.RunnerDirectory == "" {
		return nil, errors.New("the options of the Docker executor have no RunnerDirectory")
	}
	host, _ := options.Environ(client.EnvOverrideHost)
	host = cmp.Or(host, client.DefaultDockerHost)
	if strings.HasPrefix(host, "ssh://") {
		return nil, fmt.Errorf("DOCKER_HOST is %s, and ssh is not supported: "+
			"forward the socket of the engine (ssh -L) and set DOCKER_HOST to the local end", host)
	}
	version, _ := options.Environ(client.EnvOverrideAPIVersion)
	// TLS must be first: it replaces the transport that has the host.
	engine, err := client.New(
		client.WithTLSClientConfigFromEnv(), client.WithHost(host), client.WithAPIVersion(version))
	if err != nil {
		return nil, fmt.Errorf("set up the connection to the Docker engine at %s: %w", host, err)
	}
	e := &Executor{
		engine: engine, agent: options.Agent, host: host, environ: options.Environ, log: options.Log,
		directory: options.RunnerDirectory, pullTimeout: defaultPullTimeout,
		closeTimeout: defaultCloseTimeout, handoffErrorLimit: defaultHandoffErrorLimit,
	}
	if err := e.readVersion(ctx); err != nil {
		_ = engine.Close()
		return nil, err
	}
	e.log.Debug("connected to Docker engine", "agent", options.Agent, "host", host,
		"architecture", e.architecture, "api_version", engine.ClientVersion())
	return e, nil
}

// Close closes idle connections to the engine. The executor remains usable and opens new
// connections.
func (e *Executor) Close() { _ = e.engine.Close() }

// readVersion checks that the engine can run jobs, and reads its architecture.
func (e *Executor) readVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	if err := e.ping(ctx); err != nil {
		return err
	}
	about, err := e.engine.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return unreachable(e.host, err)
	}
	e.architecture = runtime.GoArchitecture(about.Arch)
	return nil
}

// ping returns why the engine cannot run jobs, as far as one short request shows.
func (e *Executor) ping(ctx context.Context) error {
	ping, err := e.engine.Ping(ctx, client.PingOptions{})
	switch {
	case err != nil:
		return unreachable(e.host, err)
	case ping.APIVersion == "":
		return fmt.Errorf("the server at %s is not a Docker engine, or does not report its version: "+
			"check DOCKER_HOST", e.host)
	case versions.LessThan(ping.APIVersion, oldestAPI):
		return fmt.Errorf("the Docker engine at %s has API %s, and %s is required: "+
			"upgrade it to Docker 19.03 or newer", e.host, ping.APIVersion, oldestAPI)
	case ping.OSType != "" && ping.OSType != "linux":
		return fmt.Errorf("the Docker engine at %s runs %s containers, and jobs need Linux: "+
			"switch it to Linux containers, or set DOCKER_HOST to another engine", e.host, ping.OSType)
	}
	return nil
}
